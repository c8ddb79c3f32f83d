"""Recomputed calls (activation checkpointing) against their first pass: both must compute the same.

What a recomputation gets wrong no forward pass shows: the outputs were right, and the gradients are taken of something
else. Both passes ran on one machine, so that anything beyond the raw limit is a fault.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from precision_align.alignment.side import Place, Side
from precision_align.comparison.raw import RawComparer
from precision_align.comparison.rows import Blame, make_row, shorten
from precision_align.core.records import Call, TensorRecord
from precision_align.core.results import Limit, RecordResult
from precision_align.core.terms import Pass, Phase, Role, Site, Status

Pair = tuple[Call, TensorRecord, TensorRecord]


class RecomputationJudge:
    """Judges the recomputed calls of the candidate."""

    def __init__(self, candidate: Side) -> None:
        self._side = candidate
        self._raw = RawComparer(candidate.dump, candidate.dump)
        self._calls: dict[tuple[int, int, int], Call] = {}
        self._by_step: dict[tuple[int, int], list[Call]] = defaultdict(list)
        for call in candidate.calls if candidate.recomputed else ():
            self._calls[call.rank, call.step, call.identity] = call
            self._by_step[call.rank, call.step].append(call)

    def judge(self, rank: int, step: int) -> list[RecordResult]:
        """Rows for all tensors of recomputed calls; the first that differs is the fault, later ones come of it."""
        calls = self._by_step.get((rank, step), [])
        first: dict[tuple[int, str], list[Call]] = {}
        for call in calls:
            if call.pass_ == Pass.FIRST:
                first.setdefault((call.micro, call.scope), []).append(call)
        pairs: list[Pair] = []
        for call in calls:
            if call.pass_ == Pass.RECOMPUTE:
                pairs += self._pair(call, first.get((call.micro, call.scope), []))
        rows: list[RecordResult] = []
        broken: set[int] = set()
        for call, again, once in sorted(pairs, key=lambda pair: pair[1].order):
            rows.append(self._judge_pair(call, again, once, broken))
        return rows

    def _pair(self, call: Call, known: list[Call]) -> list[Pair]:
        """Its tensors with those of the first call that was fed the same; of the only one there is in any case."""
        again = self._side.select_call(call)
        same = [other for other in known if _fingerprint(self._side.select_call(other)) == _fingerprint(again)]
        chosen = same or (known if len(known) == 1 else [])
        once = self._side.select_call(chosen[0]) if chosen else {}
        return [
            (call, record, once[place])
            for place, record in again.items()
            if place[0] == Phase.FORWARD and place[1] in (Role.INPUT, Role.OUTPUT) and place in once
        ]

    def _judge_pair(self, call: Call, again: TensorRecord, once: TensorRecord, broken: set[int]) -> RecordResult:
        gap = self._raw.gap(again, once)
        blame = self._blame(call, again)
        limit = Limit("raw_over_max", gap.limit, f"raw limit of {again.dtype}")
        if gap.equal or (gap.close and gap.known):
            note = "recomputed " + ("bit-equal to its first pass" if gap.equal else "within the raw limit")
            return make_row(again, blame, Status.PASS, "raw", metrics=gap.metrics, limit=limit, note=note)
        if not gap.known:
            return make_row(again, blame, Status.INCONCLUSIVE, "", note=gap.note or "nothing to compare")
        segment = self._find_segment(call)
        if segment in broken:
            note = "recomputed from what already differs from its first pass"
            return make_row(again, blame, Status.PROPAGATED, "raw", metrics=gap.metrics, note=note)
        broken.add(segment)
        note = "recomputed otherwise than in the first pass: the gradients are taken of values that nobody used"
        return make_row(again, blame, Status.FAIL, "raw", metrics=gap.metrics, limit=limit, note=note)

    def _find_segment(self, call: Call) -> int:
        """The outermost recomputed call around this one: each checkpoint starts from what it kept."""
        parent = self._calls.get((call.rank, call.step, call.parent))
        while parent is not None and parent.pass_ == Pass.RECOMPUTE:
            call, parent = parent, self._calls.get((call.rank, call.step, parent.parent))
        return call.identity

    def _blame(self, call: Call, record: TensorRecord) -> Blame:
        """An output is the call's own work, an input that of its caller."""
        if record.key.role == Role.OUTPUT:
            site = Site.MODULE if call.leaf else Site.INLINE
            return Blame(self._name(call), site, Phase.BACKWARD, call.call, shorten(call.kind), call.source)
        parent = self._calls.get((call.rank, call.step, call.parent))
        if parent is None:  # the checkpointed function itself: whoever kept its arguments
            scope = self._name(call).rpartition(".")[0]
            return Blame(scope, Site.INLINE, Phase.BACKWARD, 0, "checkpoint")
        return Blame(self._name(parent), Site.INLINE, Phase.BACKWARD, parent.call, shorten(parent.kind), parent.source)

    def _name(self, call: Call) -> str:
        return self._side.names.get(call.scope) or ""


def _fingerprint(tensors: Mapping[Place, TensorRecord]) -> tuple[tuple[str, bytes], ...]:
    return tuple(sorted((place[2], record.digest) for place, record in tensors.items() if place[1] == Role.INPUT))
