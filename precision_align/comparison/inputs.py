"""What the model was fed: data, so equal on both sides, unless the model itself made it."""

from __future__ import annotations

from precision_align.alignment.pairing import Alignment
from precision_align.alignment.side import Node, Side
from precision_align.comparison.forward import ForwardJudge
from precision_align.comparison.raw import RawComparer
from precision_align.comparison.rows import Blame, make_row
from precision_align.core.dtypes import dtype_of
from precision_align.core.results import Limit, RecordResult
from precision_align.core.terms import Phase, Site, Status

# Data prepared on the device (normalised images) may round differently: two operations.
INPUT_UNITS = 4.0


def judge_inputs(
    candidate: Side, forward: ForwardJudge, raw: RawComparer, nodes: list[Node], alignment: Alignment
) -> list[RecordResult]:
    """Rows for the inputs of the outermost calls of a step.

    The first outermost call of a micro-batch is fed from outside; later ones may be fed what the model made itself
    (sampling, adversarial training), so they are blamed only while nothing before them differs.
    """
    rows = []
    for root in (node for node in nodes if node.parent is None):
        first = candidate.roots[root.unit][0] is root
        earlier = [other for other in candidate.roots[root.unit] if other.call.exit < root.call.enter]
        clean = first or raw.are_close(
            (record, forward.find_partner(record)) for other in earlier for record in other.outputs.values()
        )
        rows += [_judge_input(root, path, forward, raw, clean, alignment) for path in root.inputs]
    return rows


def _judge_input(
    root: Node, path: str, forward: ForwardJudge, raw: RawComparer, clean: bool, alignment: Alignment
) -> RecordResult:
    record = root.inputs[path]
    blame = Blame(root.scope, Site.INPUTS, Phase.FORWARD, root.number, "inputs", root.call.source)
    partner = forward.find_partner(record)
    gap = raw.gap(record, partner)
    if root not in alignment.pairs or partner is None:
        return make_row(record, blame, Status.INCONCLUSIVE, "", note="no reference shows what the model should be fed")
    if gap.equal:
        return make_row(record, blame, Status.PASS, "hash", note="bit-equal")
    if not gap.known:
        return make_row(record, blame, Status.INCONCLUSIVE, "", note=gap.note)
    unit = INPUT_UNITS * dtype_of(record.dtype).roundoff
    limit = Limit("raw_over_max", unit, "data are equal on both sides, but for rounding in their preparation")
    over = gap.metrics.get("raw_over_max", float("inf"))
    if over <= unit and not gap.metrics.get("raw_nonfinite"):
        note = "data prepared with other rounding"
        return make_row(record, blame, Status.WARN, "raw", metrics=gap.metrics, limit=limit, note=note)
    if not clean:
        note = "fed with something that the model itself computed before"
        return make_row(record, blame, Status.PROPAGATED, "raw", metrics=gap.metrics, limit=limit, note=note)
    note = gap.note or "the two models were not fed the same data"
    return make_row(record, blame, Status.FAIL, "raw", metrics=gap.metrics, limit=limit, note=note)
