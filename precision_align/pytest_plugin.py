"""Op cases in a team's own pytest suite::

    @pytest.mark.op_cases("rope/half*")
    def test_my_rope(op_case):
        op_case.check(my_rope)

``op_case`` runs once for each selected case and dtype; ``--pa-device`` says where: cpu, cuda, npu, or
simulated[:profile]. A result that cannot be judged here (no such kernel, no such device) skips the test with its
reason; it never passes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    import torch

    from precision_align.devices.base import Device
    from precision_align.library.cases import Compute, OpCase, Operator
    from precision_align.library.results import CaseResult

MARKER = "op_cases(*select, dtypes=None): the op cases that the fixture op_case runs through, as for `case run`"


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--pa-device``, ``--pa-library``, ``--pa-seed``, ``--pa-forward-only``."""
    group = parser.getgroup("precision-align", "op cases of precision-align")
    group.addoption("--pa-device", default="cpu", help="device of the op cases (default: cpu)")
    group.addoption("--pa-library", default=None, metavar="DIR", help="a library of cases of yours; it is executed")
    group.addoption("--pa-seed", type=int, default=0, help="seed of the cases' inputs (default: 0)")
    group.addoption("--pa-forward-only", action="store_true", help="do not test gradients")


def pytest_configure(config: pytest.Config) -> None:
    """Make the marker known."""
    config.addinivalue_line("markers", MARKER)


@dataclass(frozen=True)
class CaseTrial:
    """One case in one dtype on one device: what the fixture ``op_case`` gives."""

    operator: Operator
    case: OpCase
    dtype: str
    device: Device
    seed: int
    backward: bool

    @property
    def name(self) -> str:
        """ "op/case", as ``case run`` takes it."""
        return f"{self.operator.name}/{self.case.id}"

    @property
    def place(self) -> torch.device:
        """The torch device."""
        import torch

        return torch.device(self.device.kind)

    def make_inputs(self) -> dict[str, Any]:
        """The case's keyword arguments in its dtype, on the device."""
        from precision_align.library.references import place, prepare_inputs

        return place(prepare_inputs(self.case, self.dtype, self.seed), self.place, self.case.layouts)

    def run(self, replacement: Compute) -> list[CaseResult]:
        """One result for each phase; nothing is raised for a wrong replacement."""
        from precision_align.library.runner import run_case

        return run_case(self.operator, self.case, self.dtype, replacement, self.place, self.seed, self.backward)

    def check(self, replacement: Compute) -> None:
        """Judge ``replacement``, a callable that takes the case's keywords.

        Raises AssertionError with every reason; skips where nothing could be judged.
        """
        from precision_align.core.terms import Status
        from precision_align.library.results import GOOD

        results = self.run(replacement)
        wrong = [r for r in results if r.status not in (*GOOD, Status.INCONCLUSIVE)]
        if wrong:
            lines = [f"{self.name} {self.dtype} {r.phase} {r.tensor}: {r.status}: {r.note}" for r in wrong]
            raise AssertionError(
                "\n".join([*lines, f"this case is there because: {self.case.why or 'no reason given'}"])
            )
        if not any(result.status in GOOD for result in results):
            pytest.skip(f"{self.name} {self.dtype}: {results[0].note or 'nothing could be judged here'}")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test for each case and dtype that the marker ``op_cases`` selects (default: all)."""
    if "op_case" not in metafunc.fixturenames:
        return
    marker = metafunc.definition.get_closest_marker("op_cases")
    select: Sequence[str] = marker.args if marker and marker.args else ("*",)
    dtypes = marker.kwargs.get("dtypes") if marker else None
    trials = _list_trials(metafunc.config, select, dtypes)
    ids = [f"{operator.name}/{case.id}-{dtype}" for operator, case, dtype in trials]
    metafunc.parametrize("op_case", trials, ids=ids, indirect=True)


def _list_trials(
    config: pytest.Config, select: Sequence[str], dtypes: Sequence[str] | None
) -> list[tuple[Operator, OpCase, str]]:
    from precision_align.core.errors import UsageError
    from precision_align.library.folders import find_folders
    from precision_align.library.runner import choose_cases

    try:
        chosen = choose_cases(find_folders(config.getoption("--pa-library")), select)
    except UsageError as error:
        raise pytest.UsageError(str(error)) from error
    return [
        (operator, case, dtype)
        for operator, cases in chosen
        for case in cases
        for dtype in case.dtypes
        if dtypes is None or dtype in dtypes
    ]


@pytest.fixture(scope="session")
def pa_device(request: pytest.FixtureRequest) -> Device:
    """The device that ``--pa-device`` names; its tests are skipped where it is not available."""
    from precision_align.core.errors import Unavailable
    from precision_align.devices.selection import open_device

    name = request.config.getoption("--pa-device")
    try:
        device = open_device(name)
    except Unavailable as error:
        pytest.skip(str(error))
    if not device.is_available():
        pytest.skip(f'device "{name}" is not available here')
    return device


@pytest.fixture
def op_case(request: pytest.FixtureRequest, pa_device: Device) -> CaseTrial:
    """One selected case in one dtype: see :class:`CaseTrial`."""
    operator, case, dtype = request.param
    options = request.config.getoption
    return CaseTrial(operator, case, dtype, pa_device, options("--pa-seed"), not options("--pa-forward-only"))
