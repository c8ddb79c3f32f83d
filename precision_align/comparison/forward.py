"""The forward walk: what each call's own code made, judged by hash, replay or raw evidence."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

from precision_align.alignment.pairing import Alignment
from precision_align.alignment.side import Node
from precision_align.comparison.certificates import CertificateProvider
from precision_align.comparison.forced import was_replaced
from precision_align.comparison.raw import Gap, Pair, RawComparer
from precision_align.comparison.replaying import ReplayProvider, Verdicts
from precision_align.comparison.rows import (
    RAW_GROWTH,
    Blame,
    Traced,
    blame_call,
    make_row,
    row_from_judgement,
    row_from_raw,
    shorten,
)
from precision_align.core.dtypes import dtype_of
from precision_align.core.records import TensorRecord
from precision_align.core.results import RecordResult
from precision_align.core.terms import Phase, Site, Status
from precision_align.core.trees import scalars

# Relative difference up to which two numbers given to a module may come from tensors that differ by rounding.
FLAG_SLACK = 1e-3

Owned = Callable[[Node], list[Pair]]


class ForwardJudge:
    """Judges calls in exit order. ``owned``: the parameters that a node's own code may use, with their partners."""

    def __init__(
        self,
        alignment: Alignment,
        raw: RawComparer,
        replay: ReplayProvider,
        owned: Owned,
        certificates: CertificateProvider,
    ) -> None:
        self._certificates = certificates
        self._alignment = alignment
        self._raw = raw
        self._replay = replay
        self._owned = owned

    def judge(self, node: Node) -> list[RecordResult]:
        """Rows for the call's outputs and changed buffers, and for what it gave to its children."""
        targets = list(self._list_targets(node))
        if not targets:
            return []
        lacking = [*self._judge_structure(node), *self._judge_arguments(node), *self._judge_updates(node)]
        if not lacking and self._sources_equal(node) and all(self._gap(target).equal for _, target in targets):
            return [
                make_row(record, self._blame(node, child), Status.PASS, "hash", note="bit-equal, as are its inputs")
                for child, record in targets
            ]
        verdicts, reason = self._replay.judge_forward(node)
        verdicts = self._certificates.combine(node, verdicts, backward=False)
        rows = [self._judge_target(node, child, record, verdicts, reason) for child, record in targets]
        flags = self._judge_flags(node, verdicts) if verdicts else self._compare_flags(node)
        return rows + flags + lacking

    def trace(self, node: Node) -> Iterator[Traced]:
        """Each result of a call's own code, and everything that it is computed from."""
        for child, record in self._list_targets(node):
            yield self._blame(node, child), (record, self.find_partner(record)), self._sources(node, record.order)

    def _judge_structure(self, node: Node) -> list[RecordResult]:
        """A row where the call returns fewer, more or otherwise nested tensors than the reference's."""
        partner = self._alignment.pairs.get(node)
        if partner is None or node.call.error or partner.call.error:
            return []
        paths = node.outputs.keys(), partner.outputs.keys()
        if paths[0] == paths[1]:
            return []
        ours, theirs = ({path for path in side if not path.startswith("written.")} for side in paths)
        if ours == theirs or not (ours and theirs):
            return []
        lost, more = sorted(theirs - ours), sorted(ours - theirs)
        shown = next(iter(node.outputs.values()))
        words = [f"returns no {', '.join(map(repr, lost))}"] if lost else []
        words += [f"also returns {', '.join(map(repr, more))}"] if more else []
        note = f"the candidate {' and '.join(words)}: another structure of outputs than the reference's"
        status = Status.FAIL if lost else Status.WARN
        return [make_row(shown, self._blame(node, -1), status, "structure", note=note)]

    def _judge_arguments(self, node: Node) -> list[RecordResult]:
        """A row for every call to which this code gives fewer tensors than the reference's does (a mask that is None).

        A warning: what comes of it is judged at the call's results. The same tensors by position on one side and by
        name on the other are the same.
        """
        rows = []
        for index, child in enumerate(node.children):
            partner = self._alignment.pairs.get(child)
            ours, theirs = child.inputs, {} if partner is None else partner.inputs
            if not ours or ours.keys() == theirs.keys():
                continue
            lost = [path for path in theirs if path not in ours]
            if len(lost) <= sum(path not in theirs for path in ours):
                continue
            where, names = child.scope or "the model", ", ".join(map(repr, lost))
            note = f"the candidate gives no tensor {names} to {where}, the reference does"
            rows.append(make_row(theirs[lost[0]], self._blame(node, index), Status.WARN, "structure", note=note))
        return rows

    def _judge_updates(self, node: Node) -> Iterator[RecordResult]:
        """A row for every buffer that the reference's call changes, beyond rounding, and the candidate's leaves alone.

        Where what they are fed differs, leaving it alone may be a decision on it: a warning.
        """
        partner = self._alignment.pairs.get(node)
        if partner is None or node.call.error or partner.call.error:
            return
        changes = partner.buffers
        ours = node.buffers if changes else {}
        for path, changed in changes.items():
            moment, _, name = path.partition(".")
            left = ours.get(f"before.{name}")
            if moment != "after" or path in ours or left is None or self._raw.gap(left, changed).close:
                continue
            fed = self._pair_records([*node.inputs.values(), left])
            status = Status.FAIL if self._raw.are_close(fed) else Status.WARN
            note = f"buffer {name} is not updated: the reference's call changes it, the candidate's leaves it as it was"
            yield make_row(left, self._blame(node, -1), status, "structure", note=note, order=node.call.exit)

    def list_results(self, node: Node) -> Iterator[Pair]:
        """What a call's own code made, with partners."""
        return ((record, self.find_partner(record)) for _, record in self._list_targets(node))

    def list_sources(self, node: Node) -> list[Pair]:
        """Everything that it is computed from."""
        return self._sources(node)

    def _list_targets(self, node: Node) -> Iterator[tuple[int, TensorRecord]]:
        for index, child in enumerate(node.children):
            for record in child.inputs.values():
                yield index, record
        for record in node.outputs.values():
            yield -1, record
        for path, record in node.buffers.items():
            if path.startswith("after."):
                yield -1, record

    def _judge_target(
        self, node: Node, child: int, record: TensorRecord, verdicts: Verdicts, reason: str
    ) -> RecordResult:
        return self._judge_bits(node, record, self._judge_value(node, child, record, verdicts, reason))

    def _judge_value(
        self, node: Node, child: int, record: TensorRecord, verdicts: Verdicts, reason: str
    ) -> RecordResult:
        blame, gap = self._blame(node, child), self._gap(record)
        found = verdicts.get((child, record.key.path))
        if found is not None and found[0].status != Status.INCONCLUSIVE:
            is_mask = "keep_rate" in found[0].metrics
            equal = gap.known and not (gap.close or is_mask) and self._raw.are_equal(self._sources(node, record.order))
            row = row_from_judgement(record, blame, found[0], gap, sources_equal=equal)
            return self._measure_amplification(node, self._judge_mask(node, self._check_random(node, row, gap)))
        why = reason or (found[0].why if found is not None else record.reason)
        if is_random_call(node) and gap.known and not gap.close and self._sources_close(node, record.order):
            note = "a random mask that differs: generators of different devices never match"
            return make_row(record, blame, Status.RANDOM, "raw", metrics=gap.metrics, note=note)
        return row_from_raw(record, blame, gap, self._measure_sources(node, record.order), why)

    def _judge_bits(self, node: Node, record: TensorRecord, row: RecordResult) -> RecordResult:
        """A result in fewer bits than the reference's is no pass, unless what it is computed from came in fewer bits.

        A call is replayed under its own autocast, so its values say nothing of an autocast that the reference has not:
        that shows where it costs bits, or where sources that agree give values that do not.
        """
        partner = self._alignment.pairs.get(node)
        if partner is None or row.status not in (Status.PASS, Status.WARN, Status.PROPAGATED):
            return row
        ours, theirs = set(node.call.autocast.values()), set(partner.call.autocast.values())
        other, sources = self.find_partner(record), self._sources(node, record.order)
        if _has_fewer_bits(record, other):
            if any(_has_fewer_bits(*pair) for pair in sources):
                return row
        elif not (ours and ours != theirs and not self._gap(record).close and self._raw.are_close(sources)):
            return row
        if ours != theirs and ours:
            shown = f"in {', '.join(sorted(theirs))}" if theirs else "off"
            note = f"autocast: on in {', '.join(sorted(ours))}, in the reference it is {shown}"
            return replace(row, status=Status.MODE, note=note)
        if row.evidence == "replay":  # the reference's code gives as few
            return row
        assert other is not None
        note = f"dtype {record.dtype}, the reference has {other.dtype}"
        return replace(row, status=Status.FAIL, note=note)

    def _check_random(self, node: Node, row: RecordResult, gap: Gap) -> RecordResult:
        """Code that draws random numbers replays with others: what it drew is known from the two runs alone."""
        if row.status != Status.RANDOM or not gap.known:
            return row
        if gap.close:
            note = "it draws random numbers, the same ones as the reference: the two runs agree"
            return replace(row, status=Status.PASS, evidence="raw", note=note)
        if self._measure_sources(node, row.order) * RAW_GROWTH <= gap.size:
            return row
        note = "it draws random numbers, so its replay says nothing, and its inputs differ already"
        return replace(row, status=Status.INCONCLUSIVE, evidence="", note=note)

    def _judge_mask(self, node: Node, row: RecordResult) -> RecordResult:
        """A random operator that is right in distribution, with another mask than the reference's."""
        if row.status != Status.PROPAGATED or "keep_rate" not in row.metrics:
            return row
        pairs = self._pair_records(node.inputs.values())
        if not self._raw.are_close(pairs):
            return row
        note = "right rate and scale, but another random mask than the reference's: seed, inject masks, or set p = 0"
        return replace(row, status=Status.RANDOM, note=note)

    def _measure_amplification(self, node: Node, row: RecordResult) -> RecordResult:
        """How much larger a propagated difference came out than it went in."""
        out = row.metrics.get("raw_rel_l2", 0.0)
        if row.status not in (Status.PROPAGATED, Status.PASS, Status.WARN) or not out:
            return row
        gaps = [self._raw.gap(record, other) for record, other in self._sources(node, row.order)]
        entered = max((gap.metrics.get("raw_rel_l2", 0.0) for gap in gaps), default=0.0)
        if entered <= 0:
            return row
        return replace(row, metrics={**row.metrics, "amplification": out / entered, "raw_rel_l2_in": entered})

    def _compare_flags(self, node: Node) -> list[RecordResult]:
        """Without a replay: numbers and flags that this code gives to its children, against the reference's record."""
        rows = []
        for index, child in enumerate(node.children):
            partner = self._alignment.pairs.get(child)
            record = next(iter([*child.inputs.values(), *child.outputs.values()]), None)
            if partner is None or record is None:
                continue
            known = dict(scalars(partner.call.arguments))
            for path, leaf in scalars(child.call.arguments):
                if path in known and _is_other_flag(leaf, known[path]):
                    ours, theirs = leaf.get("value"), known[path].get("value")
                    note = f"{path}: the candidate passes {ours!r}, the reference {theirs!r}"
                    rows.append(make_row(record, self._blame(node, index), Status.FAIL, "structure", note=note))
        return rows

    def _judge_flags(self, node: Node, verdicts: Verdicts) -> list[RecordResult]:
        """Numbers and flags that are no tensors: shown at a tensor of the same call."""
        rows = []
        for (child, path), (judgement, record) in verdicts.items():
            if record is not None:
                continue
            holder = node if child < 0 else node.children[child]
            records = [*holder.outputs.values()] if child < 0 else [*holder.inputs.values(), *holder.outputs.values()]
            if records:
                note = f"{path}: {judgement.why}"
                rows.append(make_row(records[0], self._blame(node, child), judgement.status, "replay", note=note))
        return rows

    def _blame(self, node: Node, child: int) -> Blame:
        site = Site.MODULE if node.call.leaf else Site.INLINE
        blame = blame_call(node.call, node.scope, node.number, site, Phase.FORWARD)
        if child < 0:
            return blame
        called = node.children[child].call
        return Blame(blame.scope, Site.INLINE, blame.phase, blame.call, blame.op, called.source or blame.source)

    def _gap(self, record: TensorRecord) -> Gap:
        return self._raw.gap(record, self.find_partner(record))

    def find_partner(self, record: TensorRecord) -> TensorRecord | None:
        """The reference's record that answers to a module's record of the candidate."""
        return self._partners.get(str(record.key))

    def index_partners(self, nodes: list[Node]) -> None:
        """Prepare :meth:`find_partner` for the records of these nodes."""
        self._partners: dict[str, TensorRecord] = {}
        for node in nodes:
            partner = self._alignment.pairs.get(node)
            if partner is None:
                continue
            for place, record in node.tensors.items():
                other = partner.tensors.get(place)
                if other is not None:
                    self._partners[str(record.key)] = other

    def _pair_records(self, records: Iterable[TensorRecord]) -> list[Pair]:
        return [(record, self.find_partner(record)) for record in records]

    def _sources(self, node: Node, before: int | None = None) -> list[Pair]:
        """Everything a result of this node's own code is computed from."""
        pairs = self._pair_records(node.inputs.values())
        pairs += [
            (record, self.find_partner(record)) for path, record in node.buffers.items() if path.startswith("before.")
        ]
        pairs += self._owned(node)
        for child in node.children:
            if before is None or child.call.exit < before:
                pairs += self._pair_records(record for record in child.outputs.values() if not was_replaced(record))
        return pairs

    def _sources_equal(self, node: Node) -> bool:
        partner = self._alignment.pairs.get(node)
        if partner is None or len(partner.children) != len(node.children):
            return False
        same = node.call.training == partner.call.training
        same = same and scalars(node.call.arguments) == scalars(partner.call.arguments)
        same = same and scalars(node.call.output) == scalars(partner.call.output)
        return same and self._raw.are_equal(self._sources(node))

    def _sources_close(self, node: Node, before: int) -> bool:
        return node in self._alignment.pairs and self._raw.are_close(self._sources(node, before))

    def _measure_sources(self, node: Node, before: int) -> float:
        return self._raw.find_largest(self._sources(node, before)) if node in self._alignment.pairs else math.inf


def _is_other_flag(ours: Any, theirs: Any) -> bool:
    """Two non-tensor arguments that differ; numbers that may be computed from tensors differ by rounding."""
    left, right = ours.get("value"), theirs.get("value")
    if ours.get("kind") != theirs.get("kind") or ours.get("kind") not in ("scalar", "float"):
        return False
    if isinstance(left, float) and isinstance(right, float):
        return abs(left - right) > FLAG_SLACK * max(abs(left), abs(right))
    return type(left) is type(right) and bool(left != right)


def _has_fewer_bits(record: TensorRecord, other: TensorRecord | None) -> bool:
    """Whether a floating tensor of the candidate is of a dtype that rounds more coarsely than the reference's."""
    if other is None:
        return False
    ours, theirs = dtype_of(record.dtype), dtype_of(other.dtype)
    return ours.is_floating and theirs.is_floating and ours.roundoff > theirs.roundoff


def is_random_call(node: Node) -> bool:
    """A Dropout or its kin while training, by class name: all that is known where the class itself is not at hand."""
    return node.call.training and "Dropout" in shorten(node.call.kind)
