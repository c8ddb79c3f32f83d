"""Loss scaling: steps that were skipped, infinities that were not, and where the scale went."""

from __future__ import annotations

import math
from collections.abc import Iterator

from precision_align.training.health.facts import Facts, Moment, is_strange
from precision_align.training.health.findings import Finding, Severity
from precision_align.training.health.updates import find_skipped

SCALES = ("loss_scale", "scale")
_SKIPPED = 0.2  # share of the steps: a scaler that grows every 2000 steps skips one in 2000
_IN_A_ROW = 4  # halvings from the start value that a healthy model may need in its first steps: 2^16 to 2^12
_COLLAPSED = 1.0  # a scale under which float16 gains nothing


def check_scales(facts: Facts) -> Iterator[Finding]:
    """Skipped steps, gradients that are not finite and were applied, a scale that collapsed."""
    skipped = find_skipped(facts)
    strange = [(name, moment) for name, all_ in facts.gradients.items() for moment, record in all_.items()
               if is_strange(record.statistics)]  # fmt: skip
    applied = sorted({moment for _, moment in strange} - skipped)
    for moment in applied[:1]:
        name = next(name for name, when in strange if when == moment)
        yield Finding("inf applied", Severity.FAULT, *moment, place=name, count=len(applied))
    if skipped:
        yield judge_skipped(facts, sorted(skipped))
    scales = {step: value for (step, _), value in sorted(facts.find_series(*SCALES).items())}
    for step, scale in scales.items():
        if not math.isfinite(scale) or scale < _COLLAPSED:
            first = next(iter(scales.values()))
            values = {"scale": scale, "start": first}
            yield Finding("scale collapsed", Severity.FAULT, step, place=SCALES[0], values=values)
            return


def judge_skipped(facts: Facts, skipped: list[Moment]) -> Finding:
    """A remark on steps that were skipped; a fault where they are too many for a scale that finds its place.

    ``skipped``: (step, rank), ascending, at least one.
    """
    steps = sorted({step for step, _ in skipped})
    known = sorted(facts.dump.steps)  # a scaler that skips a step does not call the optimizer
    longest = run = 0
    for step in known:
        run = run + 1 if step in steps else 0
        longest = max(longest, run)
    many = longest > _IN_A_ROW or (len(known) > 2 * _IN_A_ROW and len(steps) > _SKIPPED * len(known))
    place = next(
        name for name, records in facts.gradients.items()
        if skipped[0] in records and is_strange(records[skipped[0]].statistics)
    )  # fmt: skip
    values = {"steps": len(steps), "known": len(known)}
    severity = Severity.FAULT if many else Severity.REMARK
    return Finding("step skipped", severity, *skipped[0], place=place, values=values)
