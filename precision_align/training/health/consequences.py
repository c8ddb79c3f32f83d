"""Findings that follow from another one: the first cause is what has to be mended, the others go with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from precision_align.training.health.findings import Finding, Severity

# What makes ranks unequal in a step; after the optimizer's step their parameters, and all that comes of these, are so.
_PARTING = (
    "not reduced",
    "rank left out",
    "rank scaled",
    "rank rate",
    "collective",
    "replica gradients",
    "replica parameters",
)
_PARTED = ("replica parameters", "replica gradients", "replica buffers", "replica outputs")
# Cause -> what it shows as within the same step.
_AT_ONCE = {
    "collective": ("replica gradients",),
    "generators unequal": ("replica outputs",),
    "replica outputs": ("not reduced", "replica gradients"),  # equal batches: gradients differ because outputs do
    "replica parameters": ("replica gradients",),
}


def mark_consequences(findings: Sequence[Finding]) -> list[Finding]:
    """The same findings; those that follow from another one have its code in ``values["cause"]`` and are no faults."""
    return [_mark(finding, findings) for finding in findings]


def _mark(finding: Finding, findings: Sequence[Finding]) -> Finding:
    if finding.severity != Severity.FAULT:
        return finding
    causes = [one for one in findings if one.severity == Severity.FAULT and _follows(finding, one)]
    if not causes:
        return finding
    cause = min(causes, key=lambda one: (one.step, finding.code == one.code))
    return replace(finding, severity=Severity.CONSEQUENCE, values={**finding.values, "cause": cause.code})


def _follows(finding: Finding, cause: Finding) -> bool:
    if not _share_ranks(finding, cause):
        return False
    if finding.step == cause.step:
        return finding.code in _AT_ONCE.get(cause.code, ())
    return finding.step > cause.step and cause.code in _PARTING and finding.code in _PARTED


def _share_ranks(left: Finding, right: Finding) -> bool:
    """Whether both are of one group, or one is not of any."""
    groups = [str(one.values.get("group", "")).partition(" ")[0] for one in (left, right)]
    return groups[0] == groups[1] or "" in groups
