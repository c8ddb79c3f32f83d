"""What a health check found, as plain data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Union

from precision_align.core.terms import Term

Value = Union[str, int, float]


class Severity(Term):
    """Whether a finding is wrong in any training, follows from one that is, or may be meant."""

    FAULT = "fault"
    CONSEQUENCE = "consequence"
    REMARK = "remark"


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong or strange.

    ``code``: which check, such as "not updated"; ``step`` and ``rank``: where it was seen first; ``place``: parameter,
    module or series; ``values``: what the sentence about it needs; ``count``: how many places or steps share it.
    """

    code: str
    severity: Severity
    step: int
    rank: int = 0
    place: str = ""
    count: int = 1
    values: Mapping[str, Value] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "code": self.code,
            "severity": str(self.severity),
            "step": self.step,
            "rank": self.rank,
            "place": self.place,
            "count": self.count,
            "values": dict(self.values),
        }


@dataclass(frozen=True)
class Costs:
    """``step_time``: median seconds of a step; ``tokens_per_second``; ``peak_memory``: bytes; None where the run did
    not log it.

    ``recording``: tensors were recorded in the steps that count, which slows them and holds memory;
    ``modules``: scope -> bytes that its call keeps (activations) and its peak, largest first.
    """

    step_time: float | None = None
    tokens_per_second: float | None = None
    peak_memory: float | None = None
    recording: bool = False
    modules: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {**vars(self), "modules": {scope: dict(found) for scope, found in self.modules.items()}}


@dataclass(frozen=True)
class HealthReport:
    """What became of the checks of one dump.

    ``path``: the dump; ``steps`` and ``ranks`` looked at; ``findings``: faults first, then by step; ``checks``: name of
    each check and what it had to look at, 0 where the dump holds nothing for it; ``notes``: what the dump lacks;
    ``costs``: of a step and of each module, what the run logged.
    """

    path: str
    steps: Sequence[int]
    ranks: Sequence[int]
    findings: Sequence[Finding]
    checks: Mapping[str, int]
    notes: Sequence[str] = ()
    costs: Costs = field(default_factory=Costs)

    @property
    def faults(self) -> tuple[Finding, ...]:
        """The findings that are wrong in any training."""
        return tuple(finding for finding in self.findings if finding.severity == Severity.FAULT)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "dump": self.path,
            "healthy": not self.faults,
            "steps": list(self.steps),
            "ranks": list(self.ranks),
            "findings": [finding.to_dict() for finding in self.findings],
            "checks": dict(self.checks),
            "notes": list(self.notes),
            "costs": self.costs.to_dict(),
        }


def merge(findings: Sequence[Finding]) -> list[Finding]:
    """One finding for each code and place, the first seen, with the count of its kind."""
    groups: dict[tuple[str, str], list[Finding]] = {}
    for finding in findings:
        groups.setdefault((finding.code, finding.place), []).append(finding)
    merged = []
    for group in groups.values():
        first = min(group, key=lambda finding: (finding.step, finding.rank))
        merged.append(Finding(**{**vars(first), "count": sum(finding.count for finding in group)}))
    return merged
