"""What the model was fed: data, so equal on both sides, unless the model itself made it."""

from __future__ import annotations

from collections.abc import Sequence

from precision_align.alignment.pairing import Alignment
from precision_align.alignment.side import Node
from precision_align.comparison.forward import ForwardJudge
from precision_align.comparison.raw import RawComparer
from precision_align.comparison.rows import Blame, make_row
from precision_align.core.dtypes import dtype_of
from precision_align.core.results import Limit, RecordResult
from precision_align.core.terms import Phase, Site, Status

# Data prepared on the device (normalised images) may round differently: two operations.
INPUT_UNITS = 4.0
# What the model made may be enlarged on its way into the next outermost call; another batch differs by its own size.
GROWTH = 30.0


def judge_inputs(
    forward: ForwardJudge, raw: RawComparer, nodes: Sequence[Node], alignment: Alignment
) -> list[RecordResult]:
    """Rows for the inputs of the outermost calls of a step.

    The first outermost call of a step is fed from outside. Later ones may be fed what modules made before (sampling,
    adversarial training), so a difference there counts as data only where it is far beyond what came out before.
    """
    rows = []
    roots = sorted((node for node in nodes if node.parent is None), key=lambda node: node.call.enter)
    made = 0.0
    for root in roots:
        rows += [_judge_input(root, path, forward, raw, made, alignment) for path in root.inputs]
        came_out = ((record, forward.find_partner(record)) for record in root.outputs.values())
        made = max(made, raw.find_largest(came_out))
    return rows


def _judge_input(
    root: Node, path: str, forward: ForwardJudge, raw: RawComparer, made: float, alignment: Alignment
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
    limit = Limit(gap.metric, unit, "data are equal on both sides, but for rounding in their preparation")
    over = gap.size
    if over <= unit and not gap.metrics.get("raw_nonfinite"):
        note = "data prepared with other rounding"
        return make_row(record, blame, Status.WARN, "raw", metrics=gap.metrics, limit=limit, note=note)
    if made > 0 and over <= GROWTH * made and dtype_of(record.dtype).is_floating:
        note = "fed with something that the model itself computed before"
        return make_row(record, blame, Status.PROPAGATED, "raw", metrics=gap.metrics, limit=limit, note=note)
    note = gap.note or "the two models were not fed the same data"
    return make_row(record, blame, Status.FAIL, "raw", metrics=gap.metrics, limit=limit, note=note)
