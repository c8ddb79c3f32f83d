"""Every operator of the library: golden function, cases, replacements and wrong variants hold together.

One test an operator does all of it, so that what a case is judged by is computed once. Of a case's dtypes one is taken,
in turn, and of the operators a third; PRECISION_ALIGN_FULL=1 takes all operators, and ``precision-align case run``,
``precision-align case run --device simulated:none`` and ``precision-align case prove`` all dtypes.
"""

from __future__ import annotations

import pytest
import torch
from drawing import draw

from precision_align.devices import simulated
from precision_align.devices.selection import open_device
from precision_align.devices.torch_npu_lookalike import install_lookalike
from precision_align.library.cases import OpCase, Operator
from precision_align.library.crosschecking import find_disagreements
from precision_align.library.folders import find_folders, load_operator
from precision_align.library.proving import Prover
from precision_align.library.results import GOOD, CaseResult
from precision_align.library.runner import choose_replacement

FOLDERS = find_folders()
OPERATORS = FOLDERS.operators


def take_one_dtype(operator: Operator) -> list[tuple[OpCase, str]]:
    """Every case with one of its dtypes."""
    return [(case, case.dtypes[i % len(case.dtypes)]) for i, case in enumerate(operator.cases)]


def describe(results: list[CaseResult]) -> list[str]:
    return [f"{r.name} {r.phase} {r.tensor}: {r.note} {dict(r.metrics)}" for r in results if r.status not in GOOD]


@pytest.mark.parametrize("name", draw(OPERATORS, 1 / 3))
def test_golden_replacements_and_wrong_variants(name: str) -> None:
    operator = load_operator(FOLDERS, name)
    assert list(find_disagreements(operator)) == [], "golden function against its second source"
    prover = Prover(operator)
    kinds = ["cpu"]
    if simulated.is_supported():  # torch >= 2.11
        kinds.append("simulated:none")
    for kind in kinds:
        device = open_device(kind)
        if device.emulated:
            install_lookalike()
        _, compute = choose_replacement(operator, None, device)
        for case, dtype in take_one_dtype(operator):  # repeats and strides: on the CPU only
            results = prover.run(case, dtype, compute, torch.device(device.kind), thorough=kind == "cpu")
            assert describe(results) == [], (kind, dtype)
    proof = prover.prove()
    assert proof.missed == [], "wrong variants that no case catches"
    assert proof.unproved == [], "cases that catch no wrong variant"
    assert proof.tried >= 9


def test_there_are_as_many_as_promised() -> None:
    """Sixty golden functions, six hundred cases: the library's own claim."""
    assert len(OPERATORS) >= 60
    assert sum(len(load_operator(FOLDERS, name).cases) for name in OPERATORS) >= 600


def test_every_case_says_what_it_is_there_to_catch() -> None:
    silent = [f"{name}/{case.id}" for name in OPERATORS for case in load_operator(FOLDERS, name).cases if not case.why]
    assert silent == []


def test_boundary_values_are_there() -> None:
    """Each kind of boundary stands in many operators."""
    tags = [{tag for case in load_operator(FOLDERS, name).cases for tag in case.tags} for name in OPERATORS]
    for tag, least in {"tile": 45, "size-1": 45, "empty": 45, "magnitude": 45, "layout": 50, "nonfinite": 40}.items():
        assert sum(tag in mine for mine in tags) >= least, tag
    assert sum("ties" in mine for mine in tags) >= 20
