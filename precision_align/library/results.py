"""What a run of cases found, as plain data."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from precision_align.core.results import Limit
from precision_align.core.terms import Phase, Status

SCHEMA_VERSION = 1
LISTED = 3  # cases named for one reason; all of them stand in the table above
GOOD = (Status.PASS, Status.WARN)


@dataclass(frozen=True)
class CaseResult:
    """The verdict on one (operator, case, dtype, phase).

    ``tensor``: the worst output or gradient; ``metrics`` and ``limit``: of that tensor; ``note``: the reason in words
    and what else was noticed; ``versions``: of everything that took part; ``why``: what the case is there to catch.
    """

    op: str
    case: str
    dtype: str
    phase: Phase
    status: Status
    tensor: str = ""
    metrics: Mapping[str, float] = field(default_factory=dict)
    limit: Limit | None = None
    note: str = ""
    device: str = ""
    replacement: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    why: str = ""

    @property
    def name(self) -> str:
        """ "op/case", the form that selects it."""
        return f"{self.op}/{self.case}"


@dataclass(frozen=True)
class CaseReport:
    """All results of one run. ``select``, ``device``, ``seed``: what was asked for."""

    results: Sequence[CaseResult]
    select: str
    device: str
    seed: int

    @property
    def passed(self) -> bool:
        """Something was judged and nothing failed. What could not be judged here is counted, not passed."""
        states = [result.status for result in self.results]
        return any(state in GOOD for state in states) and not self.failures

    @property
    def failures(self) -> list[CaseResult]:
        """Everything that failed, an undeclared arithmetic mode included."""
        return [result for result in self.results if result.status not in (*GOOD, Status.INCONCLUSIVE)]

    @property
    def counts(self) -> dict[str, int]:
        """Status -> number of results."""
        return {str(status): count for status, count in sorted(Counter(r.status for r in self.results).items())}

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON; NaN and infinities as the strings "nan", "inf", "-inf"."""
        return {
            "schema_version": SCHEMA_VERSION,
            "passed": self.passed,
            "select": self.select,
            "device": self.device,
            "seed": self.seed,
            "counts": self.counts,
            "results": [_make_plain(dataclasses.asdict(result)) for result in self.results],
        }

    def render(self) -> str:
        """A table for a terminal, failures' reasons below it, and the summary in the last line."""
        lines = _align(["case", "dtype", "phase", "status", "z", "rho", "tensor"], map(_row_of, self.results))
        lines += [""] if any(result.status != Status.PASS for result in self.results) else []
        lines += _group_reasons([result for result in self.results if result.status != Status.PASS])
        lines += _list_aims(self.failures)
        counts = ", ".join(f"{count} {status}" for status, count in self.counts.items())
        lines += ["", f"{'passed' if self.passed else 'FAILED'} on {self.device}: {counts or 'no case ran'}"]
        return "\n".join(lines)


def _make_plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _make_plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_make_plain(item) for item in value]
    if isinstance(value, (Phase, Status)):
        return str(value)
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _row_of(result: CaseResult) -> list[str]:
    numbers = [f"{result.metrics[key]:.3g}" if key in result.metrics else "" for key in ("z", "rho")]
    return [result.name, result.dtype, str(result.phase), str(result.status), *numbers, result.tensor]


def _explain(result: CaseResult) -> str:
    if result.limit is None or result.limit.metric not in result.metrics:
        return result.note
    value = result.metrics[result.limit.metric]
    return f"{result.note} ({result.limit.metric} = {value:.3g}, limit {result.limit.value:.3g}: {result.limit.origin})"


def _group_reasons(results: Sequence[CaseResult]) -> list[str]:
    """One line for each reason of each operator, with all that it was given for."""
    groups: dict[tuple[str, str], list[CaseResult]] = {}
    for result in results:
        groups.setdefault((result.op, _explain(result)), []).append(result)
    return [f"{op}: {_list_subjects(group)}: {reason}" for (op, reason), group in groups.items()]


def _list_aims(failures: Sequence[CaseResult]) -> list[str]:
    """What the cases that failed are there to catch: often the mistake that was made, by name."""
    aims = dict.fromkeys(f"  {result.name}: {result.why}" for result in failures if result.why)
    return ["", "what the cases that failed are there to catch:", *aims] if aims else []


def _list_subjects(group: Sequence[CaseResult]) -> str:
    names = [f"{result.case} {result.dtype} {result.phase}" for result in group]
    more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
    return ", ".join(names[:LISTED]) + more


def _align(head: list[str], rows: Iterable[list[str]]) -> list[str]:
    table = [head, *rows]
    widths = [max(len(row[column]) for row in table) for column in range(len(head))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in table]
