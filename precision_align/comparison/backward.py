"""The backward walk: the gradients that each call's own code computed."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence

from precision_align.alignment.pairing import Alignment
from precision_align.alignment.refitting import WHOLE
from precision_align.alignment.side import Node, Side, Unit
from precision_align.comparison.certificates import CertificateProvider
from precision_align.comparison.forced import is_gradient_replaced, was_replaced
from precision_align.comparison.forward import ForwardJudge, Owned
from precision_align.comparison.insides import Found, InsideJudge
from precision_align.comparison.raw import Gap, Pair, RawComparer
from precision_align.comparison.replaying import ReplayProvider
from precision_align.comparison.rows import (
    RAW_GROWTH,
    Blame,
    Traced,
    blame_call,
    make_row,
    row_from_judgement,
    row_from_raw,
)
from precision_align.core.errors import DumpError
from precision_align.core.records import TensorRecord
from precision_align.core.results import RecordResult
from precision_align.core.terms import Phase, Site, Status
from precision_align.numerics.limits import raw_limit
from precision_align.numerics.metrics import measure

OWN = "nothing but the model's own code sends it back, and it is as its replay makes it"


class BackwardJudge:
    """Judges gradients: of inputs and parameters by the call that used them, of outputs by the caller that went on."""

    def __init__(
        self,
        alignment: Alignment,
        raw: RawComparer,
        replay: ReplayProvider,
        forward: ForwardJudge,
        owned: Owned,
        certificates: CertificateProvider,
    ) -> None:
        self._certificates = certificates
        self._alignment = alignment
        self._raw = raw
        self._replay = replay
        self._forward = forward
        self._owned = owned
        self._insides = InsideJudge(alignment, replay)
        self._has_gradients = any(node.gradients for node in alignment.candidate.nodes)
        sides = (alignment.candidate, alignment.reference)
        self._scales = [{} if side is None else read_loss_scales(side) for side in sides]

    def judge(self, node: Node) -> list[RecordResult]:
        """Rows for the gradients of a call's inputs and own parameters and of its children's outputs."""
        rows = self._judge_entry(node) if node.parent is None else []
        targets = self._list_targets(node)
        if not targets:
            return rows
        if self._sources_equal(node) and all(self._gap(record).equal for _, record in targets):
            note = "bit-equal, as is what it is computed from"
            return rows + [
                make_row(record, self._blame(node, child), Status.PASS, "hash", note=note) for child, record in targets
            ]
        verdicts, reason = self._replay.judge_backward(node)
        verdicts = self._certificates.combine(node, verdicts, backward=True)
        for child, record in targets:
            if record.extra.get("inside"):
                rows.append(self._row_inside(node, child, record))
                continue
            found = verdicts.get((child, record.key.path))
            blame, gap = self._blame(node, child), self._gap(record)
            if found is not None and found[0].status != Status.INCONCLUSIVE:
                equal = gap.known and not gap.close and self._raw.are_equal(self._sources(node, record.order))
                rows.append(row_from_judgement(record, blame, found[0], gap, sources_equal=equal))
                continue
            if record.extra.get("shared"):
                reason = "a sum over all consumers, not this call's share"
            rows.append(row_from_raw(record, blame, gap, self._measure_sources(node, record.order), reason))
        return rows

    def trace(self, node: Node) -> Iterator[Traced]:
        """Each gradient that a call's own code computes, and everything that it is computed from."""
        for child, record in self._list_targets(node):
            yield (
                self._blame(node, child),
                (record, self._forward.find_partner(record)),
                self._sources(node, record.order),
            )

    def judge_lacking(self, nodes: Sequence[Node]) -> list[RecordResult]:
        """Activation gradients that the reference has and the candidate has not: the graph is cut somewhere.

        The latest such call of a micro-batch stands next to the cut; the gradients before it are lost with it.
        """
        rows: list[RecordResult] = []
        units: dict[Unit, list[Node]] = defaultdict(list)
        for node in nodes:
            units[node.unit].append(node)
        for members in units.values():
            if any(node.call.error for node in members):
                continue  # the run stopped in there: what is missing was never computed
            orders = [record.order for node in members for record in node.gradients.values()]
            late_first = sorted(members, key=lambda node: -node.call.exit)
            rows += [row for node in late_first for row in self._rows_unused(node)]
            lacking = [pair for node in late_first for pair in self._lack(node)]
            # a run recorded without gradients lacks all of them; one that skipped a backward pass lacks these
            if lacking and (orders or self._has_gradients):
                rows += self._row_lacking(lacking, max(orders or [node.call.exit for node in members]))
        return rows

    def _rows_unused(self, node: Node) -> list[RecordResult]:
        """Parameters that a call's own code gives no gradient, although one comes back to its output."""
        partner = self._alignment.pairs.get(node)
        ours = {} if partner is None else node.gradients
        if partner is None or not any(path.partition(".")[0] == "output" for path in ours):
            return []
        last = max(record.order for record in ours.values())
        return [
            make_row(
                record,
                self._blame(node, -1),
                Status.FAIL,
                "structure",
                note=f"its code sends no gradient to {path.partition('.')[2]}: detached, frozen or not used",
                order=last,
            )
            for path, record in partner.gradients.items()
            if path.startswith("parameter.") and path not in ours
        ]

    def _lack(self, node: Node) -> list[tuple[Node, TensorRecord, str]]:
        partner = self._alignment.pairs.get(node)
        if partner is None or not node.call.grad_enabled:
            return []
        ours = node.gradients
        where = f"{node.scope or 'the root'} (call {node.number})"
        found = []
        for path, record in partner.gradients.items():
            kind, _, place = path.partition(".")
            if path in ours:
                continue
            if kind == "output" and place in node.outputs and not _is_callers(partner, path):
                found.append((node, record, f"no gradient comes back to the output of {where}: detached, or not used"))
            elif kind == "input" and self._is_cut(node, partner, place):
                found.append((node, record, f"{where} is given {place} without its graph: detached"))
        return found

    def _is_cut(self, node: Node, partner: Node, path: str) -> bool:
        """The caller hands over a tensor that needs no gradient here and needs one in the reference."""
        ours, theirs = node.inputs.get(path), partner.inputs.get(path)
        if node.parent is None or ours is None or theirs is None:
            return False
        flows = any(name.partition(".")[0] == "output" for name in node.gradients)
        return flows and theirs.requires_grad and not ours.requires_grad

    def _row_lacking(self, lacking: list[tuple[Node, TensorRecord, str]], order: int) -> list[RecordResult]:
        rows = []
        for number, (node, record, note) in enumerate(lacking):
            caller = self._find_cutting(node)
            blame = blame_call(caller.call, caller.scope, caller.number, Site.INLINE, Phase.BACKWARD)
            status = Status.FAIL if number == 0 else Status.MISSING
            rows.append(make_row(record, blame, status, "structure", note=note, order=order))
        return rows

    def _find_cutting(self, node: Node) -> Node:
        """The innermost caller to whose own output a gradient comes back: one that has none is cut off itself."""
        caller = node.parent or node
        while caller.parent is not None and self._lacks_all(caller):
            caller = caller.parent
        return caller

    def _lacks_all(self, node: Node) -> bool:
        partner = self._alignment.pairs.get(node)
        ours, theirs = (
            any(path.partition(".")[0] == "output" for path in side.gradients) if side is not None else False
            for side in (node, partner)
        )
        return theirs and not ours

    def _judge_entry(self, node: Node) -> list[RecordResult]:
        """The gradients that enter the model: made by loss code outside of it, which cannot be replayed."""
        rows = []
        outputs = [(record, self._forward.find_partner(record)) for record in node.outputs.values()]
        blame = Blame(node.scope, Site.INPUTS, Phase.BACKWARD, node.number, "loss", node.call.source)
        for path, record in node.gradients.items():
            if path.partition(".")[0] != "output":
                continue
            if record.extra.get("inside") and self._is_own(node, record):
                rows.append(
                    make_row(record, blame, Status.PROPAGATED, "replay", metrics=self._gap(record).metrics, note=OWN)
                )
                continue
            entered = self._raw.find_largest(outputs) if node in self._alignment.pairs else math.inf
            scaled = self._row_scaled(node, record, blame)
            what = "made by loss code outside the model"
            rows.append(scaled or self._row_proportional(record, blame, entered, what))
        return rows

    def _is_own(self, node: Node, record: TensorRecord) -> bool:
        """Whether an output's gradient differs, and is all sent back by the model itself, whose code is judged."""
        gap = self._gap(record)
        return gap.known and not gap.close and self._insides.is_all_own(node, record)

    def _row_scaled(self, node: Node, record: TensorRecord, blame: Blame) -> RecordResult | None:
        """Another loss scale (GradScaler) multiplies every gradient by a known number, and is taken out later."""
        partner = self._alignment.pairs.get(node)
        ours = self._scales[0].get(node.unit.step)
        theirs = None if partner is None else self._scales[1].get(partner.unit.step)
        other = self._forward.find_partner(record)
        if not ours or not theirs or ours == theirs or other is None or self._alignment.reference is None:
            return None
        try:
            actual = self._alignment.candidate.dump.values(record.key).astype("float64") / ours
            found = measure(actual, self._alignment.reference.dump.values(other.key).astype("float64") / theirs)
        except (KeyError, DumpError, ValueError):
            return None
        if found.nonfinite or found.over_max > raw_limit(record.dtype):
            return None
        note = f"the same but for the loss scale, {ours:g} instead of {theirs:g}"
        return make_row(record, blame, Status.WARN, "raw", metrics={"loss_scale_ratio": ours / theirs}, note=note)

    def _row_inside(self, node: Node, child: int, record: TensorRecord) -> RecordResult:
        """The gradient of an output that its own call uses, too: a part is the child's, so it is judged raw."""
        others = [other for path, other in node.children[child].gradients.items() if path.startswith("output")]
        pairs = [(other, self._forward.find_partner(other)) for other in others if other is not record]
        known = node in self._alignment.pairs
        entered = self._raw.find_largest([*self._sources(node, record.order), *pairs]) if known else math.inf
        what = "a sum of what this code and the child itself send back"
        row = self._row_proportional(record, self._blame(node, child), entered, what)
        if row.status == Status.PASS:
            return row
        gap = self._gap(record)
        found = self._insides.judge(node, child, record) if gap.known else None
        if found is None:
            return row
        blame = self._blame(node.children[child], -1) if found == Found.CALLERS else self._blame(node, child)
        status = Status.PROPAGATED if found == Found.WHOLE else Status.FAIL
        return make_row(record, blame, status, "replay", metrics=gap.metrics, note=found.value)

    def _row_proportional(self, record: TensorRecord, blame: Blame, entered: float, what: str) -> RecordResult:
        """Raw evidence on what cannot be replayed: a difference like that of its sources came in with them."""
        gap = self._gap(record)
        out = gap.size
        if gap.known and not gap.close and 0 < out <= RAW_GROWTH * entered < math.inf:
            note = f"{what}, and differs about as much as what it is made from"
            return make_row(record, blame, Status.PROPAGATED, "raw", metrics=gap.metrics, note=note)
        return row_from_raw(record, blame, gap, entered, what)

    def list_results(self, node: Node) -> list[Pair]:
        """What a call's own code made, with partners."""
        return [(record, self._forward.find_partner(record)) for _, record in self._list_targets(node)]

    def list_sources(self, node: Node) -> list[Pair]:
        """Everything that it is computed from."""
        return self._sources(node)

    def _list_targets(self, node: Node) -> list[tuple[int, TensorRecord]]:
        targets = [
            (-1, record)
            for path, record in node.gradients.items()
            if path.partition(".")[0] in ("input", "parameter") and not record.extra.get(WHOLE)
        ]
        for index, child in enumerate(node.children):
            targets += [
                (index, record)
                for path, record in child.gradients.items()
                if path.partition(".")[0] == "output" and not _is_callers(child, path)
            ]
        return targets

    def _sources(self, node: Node, before: int | None = None) -> list[Pair]:
        records = [
            record
            for path, record in node.gradients.items()
            if path.partition(".")[0] == "output" and not is_gradient_replaced(node, path)
        ]
        records += list(node.inputs.values())
        for child in node.children:
            records += [record for record in child.outputs.values() if not was_replaced(record)]
            records += [
                record
                for path, record in child.gradients.items()
                if path.startswith("input.") and (before is None or record.order < before)
            ]
        return [(record, self._forward.find_partner(record)) for record in records] + self._owned(node)

    def _sources_equal(self, node: Node) -> bool:
        return node in self._alignment.pairs and self._raw.are_equal(self._sources(node))

    def _measure_sources(self, node: Node, before: int) -> float:
        return self._raw.find_largest(self._sources(node, before)) if node in self._alignment.pairs else math.inf

    def _gap(self, record: TensorRecord) -> Gap:
        return self._raw.gap(record, self._forward.find_partner(record))

    def _blame(self, node: Node, child: int) -> Blame:
        site = Site.MODULE if child < 0 and node.call.leaf else Site.INLINE
        return blame_call(node.call, node.scope, node.number, site, Phase.BACKWARD)


def read_loss_scales(side: Side) -> dict[int, float]:
    """Step -> scale that a GradScaler multiplied the loss by, where it was recorded."""
    return {point.step: point.value for point in side.dump.series if point.name == "loss_scale"}


def _is_callers(child: Node, path: str) -> bool:
    """The child's output is its caller's output too: the same gradient is listed there."""
    output = child.outputs.get(path[len("output") :].lstrip("."))
    return output is None or bool(output.extra.get("returned") or output.extra.get("same_as"))
