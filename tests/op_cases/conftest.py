"""Runs variants of an operator over its cases; what they are judged by is computed once a session."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from precision_align.library.cases import OpCase, Operator
from precision_align.library.folders import find_folders, load_operator
from precision_align.library.references import References, prepare_references
from precision_align.library.results import GOOD, CaseResult
from precision_align.library.trials import try_refusal, try_replacement

CPU = torch.device("cpu")


class Bench:
    """Operators, and the references of their cases, loaded when first needed."""

    def __init__(self) -> None:
        self._operators: dict[str, Operator] = {}
        self._references: dict[tuple[str, str, str], References] = {}

    def operator(self, name: str) -> Operator:
        if name not in self._operators:
            self._operators[name] = load_operator(find_folders(), name)
        return self._operators[name]

    def results(self, name: str, compute: Callable[..., Any], skip: tuple[str, ...] = ()) -> Iterator[CaseResult]:
        """All results of all cases but those named, one dtype after the other."""
        operator = self.operator(name)
        for case in operator.cases:
            for dtype in case.dtypes if case.id not in skip else ():
                for result in self._run(operator, case, dtype, compute):
                    yield replace(result, dtype=dtype)

    def failures(self, name: str, compute: Callable[..., Any], skip: tuple[str, ...] = ()) -> list[str]:
        """Everything that is neither pass nor warn."""
        bad = [result for result in self.results(name, compute, skip) if result.status not in GOOD]
        return [f"{r.name} {r.dtype} {r.phase} {r.tensor}: {r.note} {dict(r.metrics)}" for r in bad]

    def _run(self, operator: Operator, case: OpCase, dtype: str, compute: Callable[..., Any]) -> list[CaseResult]:
        if case.raises:
            return try_refusal(operator, case, dtype, 0, compute, CPU)
        key = (operator.name, case.id, dtype)
        if key not in self._references:
            self._references[key] = prepare_references(operator, case, dtype, 0, backward=True)
        return try_replacement(operator, case, self._references[key], compute, CPU)


@pytest.fixture(scope="session")
def bench() -> Bench:
    return Bench()
