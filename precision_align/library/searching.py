"""The worst input of a replacement: hypothesis varies sizes, spreads and seeds, aims at the largest error, and shrinks
what fails to the smallest such input. Needs the package hypothesis, which nothing else here does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from precision_align.core.errors import Unavailable, UsageError
from precision_align.devices.cpu import CpuDevice
from precision_align.library.cases import Compute, Operator
from precision_align.library.folders import HasFolders, PathLike, find_folders
from precision_align.library.results import GOOD, CaseResult
from precision_align.library.runner import Progress, Replacement, choose_cases, choose_replacement, resolve, run_case

SEEDS = 1000  # of the numbers within one shape; few, so that a shrunk example has a short seed


@dataclass(frozen=True)
class Found:
    """``numbers``: the sizes, spreads and the seed of the worst input; ``failed``: whether the verdict is a failure
    (then it is the smallest that hypothesis found); ``metrics``, ``note``: of that verdict."""

    op: str
    replacement: str
    dtype: str
    numbers: Mapping[str, float]
    failed: bool
    metrics: Mapping[str, float] = field(default_factory=dict)
    note: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return asdict(self)

    def render(self) -> str:
        """One line."""
        numbers = ", ".join(f"{name}={value:.6g}" for name, value in self.numbers.items())
        size = f"z = {self.metrics.get('z', 0.0):.3g}, rho = {self.metrics.get('rho', 0.0):.3g}"
        verdict = "FAILS, smallest input" if self.failed else "passes, worst input"
        return f"{self.op} ({self.replacement}, {self.dtype}) {verdict}: {numbers}: {size}; {self.note}"


def search_cases(
    select: str | Sequence[str] = "*",
    *,
    replacement: Replacement = None,
    dtype: str = "float32",
    examples: int = 100,
    library: PathLike | HasFolders | None = None,
    progress: Progress = None,
) -> list[Found]:
    """Search every selected operator that says how (``Operator.search``), on the CPU.

    Raises UsageError where none does, Unavailable without hypothesis.
    """
    patterns = [select] if isinstance(select, str) else list(select)
    chosen = [operator for operator, _ in choose_cases(find_folders(library), patterns) if operator.search is not None]
    if not chosen:
        raise UsageError("no selected operator can be searched: give OPERATOR a field `search`")
    found = []
    for operator in chosen:
        name, compute = choose_replacement(operator, resolve(replacement), CpuDevice())
        if progress:
            progress(f"{operator.name}: {examples} inputs for {name}")
        found.append(search_worst(operator, name, compute, dtype, examples))
    return found


def search_worst(operator: Operator, name: str, compute: Compute, dtype: str, examples: int) -> Found:
    """The worst of ``examples`` inputs by z, or the smallest that fails. The search itself is repeatable."""
    hypothesis = _import_hypothesis()
    worst: list[Found] = []
    failing: list[Found] = []

    def look(data: Any) -> None:
        numbers = _draw_numbers(operator, data, hypothesis.strategies)
        found = _judge(operator, name, compute, dtype, numbers)
        if found.failed:
            failing.append(found)
            raise _FailureError(found.note)
        size = min(found.metrics.get("z", 0.0), 1e6)
        hypothesis.target(size)
        if not worst or size > worst[-1].metrics.get("z", 0.0):
            worst.append(found)

    settings = hypothesis.settings(
        max_examples=examples, deadline=None, derandomize=True, database=None,
        suppress_health_check=list(hypothesis.HealthCheck), verbosity=hypothesis.Verbosity.quiet,
        report_multiple_bugs=False, print_blob=False,
    )  # fmt: skip
    try:
        settings(hypothesis.given(hypothesis.strategies.data())(look))()
    except _FailureError:
        return failing[-1]  # hypothesis runs the shrunk example last
    return worst[-1]


class _FailureError(Exception):
    """What hypothesis shrinks."""


def _import_hypothesis() -> Any:
    try:
        import hypothesis
        import hypothesis.strategies
    except ImportError as error:
        raise Unavailable(
            "searching for the worst input needs the package hypothesis: pip install hypothesis"
        ) from error
    return hypothesis


def _draw_numbers(operator: Operator, data: Any, strategies: Any) -> dict[str, float]:
    """Whole numbers as they are; real ones by eighths of an octave, so that a shrunk one is short too."""
    import math

    assert operator.search is not None
    numbers: dict[str, float] = {}
    for name, (low, high) in operator.search.space.items():
        if isinstance(low, int) and isinstance(high, int):
            numbers[name] = data.draw(strategies.integers(low, high), label=name)
        else:
            steps = int(8 * math.log2(high / low))
            numbers[name] = low * 2 ** (data.draw(strategies.integers(0, steps), label=name) / 8)
    numbers["seed"] = data.draw(strategies.integers(0, SEEDS), label="seed")
    return numbers


def _judge(operator: Operator, name: str, compute: Compute, dtype: str, numbers: Mapping[str, float]) -> Found:
    assert operator.search is not None
    case = operator.search.make(**{key: value for key, value in numbers.items() if key != "seed"})
    results = run_case(operator, case, dtype, compute, torch.device("cpu"), int(numbers["seed"]))
    result = max(results, key=_rank)
    failed = result.status not in GOOD
    return Found(operator.name, name, dtype, dict(numbers), failed, dict(result.metrics), result.note)


def _rank(result: CaseResult) -> tuple[bool, float]:
    return result.status not in GOOD, result.metrics.get("z", 0.0)
