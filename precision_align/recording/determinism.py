"""A guard that reports every operator without a deterministic implementation instead of stopping at the first."""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from precision_align.recording.nodes import graph_task
from precision_align.recording.origins import caller_line

_ALERT = re.compile(r"(\S+) does not have a deterministic implementation")
_UNSET = re.compile(r"Deterministic behavior was enabled .*CUBLAS_WORKSPACE_CONFIG", re.DOTALL)
_ANY = r"(?s).*(does not have a deterministic implementation|Deterministic behavior was enabled)"


@dataclass(frozen=True)
class Nondeterminism:
    """One operator that may give other bits when run again: its name, the user's line, the pass, and how often."""

    operator: str
    line: str
    phase: str
    count: int

    def __str__(self) -> str:
        return f"{self.operator} at {self.line or 'an unknown line'} ({self.phase}, {self.count} times)"


@dataclass
class DeterminismReport:
    """What a guard has met so far."""

    _counts: Counter[tuple[str, str, str]] = field(default_factory=Counter)

    @property
    def found(self) -> Sequence[Nondeterminism]:
        """Each operator and line once, in the order of first appearance."""
        return [Nondeterminism(*place, count) for place, count in self._counts.items()]

    def hear(self, text: str) -> bool:
        """Take a warning's text; whether it was one of ours."""
        alert = _ALERT.search(text)
        name = alert.group(1) if alert else "cuBLAS (CUBLAS_WORKSPACE_CONFIG is not set)" if _UNSET.search(text) else ""
        if name:
            self._counts[name, caller_line(), "forward" if graph_task() == -1 else "backward"] += 1
        return bool(name)


@contextmanager
def guard_determinism() -> Iterator[DeterminismReport]:
    """Run with deterministic algorithms and collect, line by line, the operators that have none.

    ``with guard_determinism() as report: train()``, then look at ``report.found``. Operators that have a deterministic
    implementation use it inside, so the numbers may differ from those outside. Other warnings go their usual way.
    """
    report = DeterminismReport()
    enabled = torch.are_deterministic_algorithms_enabled()
    lenient = torch.is_deterministic_algorithms_warn_only_enabled()
    with warnings.catch_warnings():
        previous = warnings.showwarning

        def show(message: Any, category: Any, filename: str, lineno: int, file: Any = None, line: Any = None) -> None:
            if not report.hear(str(message)):
                previous(message, category, filename, lineno, file, line)

        warnings.filterwarnings("always", message=_ANY)
        warnings.showwarning = show
        torch.use_deterministic_algorithms(True, warn_only=True)
        try:
            yield report
        finally:
            torch.use_deterministic_algorithms(enabled, warn_only=lenient)
