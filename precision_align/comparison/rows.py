"""Builds the result rows: from a record and what is known of it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from precision_align.comparison.raw import Gap, Pair
from precision_align.core.records import Call, TensorRecord
from precision_align.core.results import OUT_OF_TIME, Limit, RecordResult
from precision_align.core.terms import Phase, Site, Status
from precision_align.numerics.judgement import Judgement

# How much a module may enlarge a difference before raw evidence blames it: networks at rest stay below 10 a module.
RAW_GROWTH = 30.0
# Raw evidence that is less than the values: a row names it, since its power is another.
WEAKER = ("sketch", "statistics", "sample")


@dataclass(frozen=True)
class Blame:
    """Whose code a record is the result of."""

    scope: str
    site: Site
    phase: Phase
    call: int
    op: str
    source: str = ""


# Of most records of two long runs: one for all.
NO_METRICS: Mapping[str, float] = {}

# What is said of a result that passes its replay and differs from the reference's on bit-equal inputs all the same.
ILL_CONDITIONED = "though rounding shows much on these inputs: an ill-conditioned place"

# A result with its partner, whose code it is the result of, and everything that it is computed from.
Traced = tuple[Blame, Pair, list[Pair]]


def shorten(kind: str) -> str:
    """The class name without its module: "torch.nn.modules.linear.Linear" -> "Linear"."""
    return kind.rpartition(".")[2]


def blame_call(call: Call, scope: str, number: int, site: Site, phase: Phase) -> Blame:
    """Blame the code of one call."""
    return Blame(scope, site, phase, number, shorten(call.kind), call.source)


def make_row(
    record: TensorRecord,
    blame: Blame,
    status: Status,
    evidence: str,
    *,
    metrics: Mapping[str, float] | None = None,
    limit: Limit | None = None,
    note: str = "",
    order: int | None = None,
) -> RecordResult:
    """One result row. Where every value is NaN nothing was compared: such a record never passes."""
    key = record.key
    if status == Status.PASS and record.is_all_nan:
        status, evidence, note = Status.INCONCLUSIVE, "", f"every value is NaN on both sides; {note}"
    return RecordResult(
        key=str(key),
        scope=blame.scope,
        site=blame.site,
        phase=blame.phase,
        role=key.role,
        path=key.path,
        call=blame.call,
        step=key.step,
        micro=key.micro,
        rank=key.rank,
        op=blame.op,
        status=status,
        evidence=evidence,
        metrics=dict(metrics) if metrics else NO_METRICS,
        limit=limit,
        note=note,
        nbytes=record.nbytes,
        order=record.order if order is None else order,
        source=blame.source,
    )


def row_from_judgement(
    record: TensorRecord, blame: Blame, judgement: Judgement, gap: Gap, *, sources_equal: bool = False
) -> RecordResult:
    """A local verdict; what passes locally but differs raw is propagated, unless nothing differs that could be."""
    status = judgement.status
    note = judgement.why
    if status == Status.PASS and gap.known and not gap.close and sources_equal:
        note = f"{note}, {ILL_CONDITIONED}"
    elif status == Status.PASS and gap.known and not gap.close:
        status, note = Status.PROPAGATED, f"{note}; the difference came in through its inputs"
    metrics = {**judgement.metrics, **gap.metrics}
    return make_row(record, blame, status, judgement.evidence, metrics=metrics, limit=judgement.limit, note=note)


def row_from_raw(record: TensorRecord, blame: Blame, gap: Gap, entered: float, reason: str) -> RecordResult:
    """A raw verdict: outputs that differ more than anything they are computed from are a failure.

    ``entered``: the largest raw difference of the sources. A difference that only grew across the limit says nothing,
    and integers may be decisions at a tie, so those need bit-equal sources.
    """
    limit = Limit(gap.metric, gap.limit, f"raw limit of {record.dtype}")
    evidence = gap.how if gap.how in WEAKER else "raw"
    if not gap.known:
        note = gap.note or "nothing to compare"
        return make_row(record, blame, Status.INCONCLUSIVE, "", note="; ".join(filter(None, (note, reason))))
    if reason == OUT_OF_TIME and not gap.equal and gap.close:
        note = f"within the raw limit, which is not all that was to be asked; {reason}"
        return make_row(record, blame, Status.INCONCLUSIVE, "", metrics=gap.metrics, limit=limit, note=note)
    if gap.equal or gap.close:
        note = "bit-equal to the reference" if gap.equal else "within the raw limit"
        note = "; ".join(filter(None, (note, gap.note)))
        return make_row(record, blame, Status.PASS, evidence, metrics=gap.metrics, limit=limit, note=note)
    came_out = math.inf if gap.metrics.get("raw_nonfinite") else gap.size
    allowed = 0.0 if gap.limit == 0 else min(gap.limit, came_out / RAW_GROWTH)
    if entered <= allowed and gap.metrics.get("raw_nonfinite"):
        limit = Limit("raw_nonfinite", 0.0, "NaN and Inf stand on both sides or on none")
        note = "NaN or Inf on one side only, although everything it is computed from agrees"
        return make_row(record, blame, Status.FAIL, evidence, metrics=gap.metrics, limit=limit, note=note)
    if entered <= allowed:
        note = "differs although everything it is computed from agrees"
        note = f"{note}; {gap.note}" if gap.note and gap.how not in ("shape", "dtype") else gap.note or note
        return make_row(record, blame, Status.FAIL, evidence, metrics=gap.metrics, limit=limit, note=note)
    note = "; ".join(filter(None, ("differs, and so does what it is computed from", gap.note, reason)))
    return make_row(record, blame, Status.INCONCLUSIVE, "", metrics=gap.metrics, limit=limit, note=note)


def note_disagreements(rows: Iterable[RecordResult]) -> list[str]:
    """Where replay passes what the two runs alone, on bit-equal inputs, would fail. The replay's verdict stands."""
    found = [row for row in rows if ILL_CONDITIONED in row.note and row.status != Status.FAIL]
    notes = []
    for row in found[:3]:
        apart = f"{row.metrics.get('raw_over_max', math.inf):.1e} of the largest value"
        notes.append(
            f"evidence disagrees on {row.key}: replay says {row.status}, but the runs differ there by {apart} on "
            "bit-equal inputs"
        )
    return notes + ([f"evidence disagrees on {len(found) - 3} more records"] if len(found) > 3 else [])
