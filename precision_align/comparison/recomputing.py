"""A blamed result computed once more, with what variants of the code give, so that it can be explained."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from precision_align.alignment.pairing import Alignment
from precision_align.alignment.side import Node, Side
from precision_align.comparison.optimizers import build_update, split_state
from precision_align.comparison.raw import is_equal
from precision_align.comparison.replaying import ReplayProvider
from precision_align.comparison.totals import find_expected
from precision_align.core.dtypes import Array
from precision_align.core.errors import DumpError
from precision_align.core.records import TensorRecord
from precision_align.core.results import Divergence
from precision_align.core.terms import Phase, Role, Site

Variant = tuple[str, str, Array]


@dataclass(frozen=True)
class Recomputed:
    """A judged result in float64: the candidate's and the golden one, (name, text, value) of variants of it, and
    where a call has one floating input and no children, that input.
    """

    record: TensorRecord
    actual: Array
    golden: Array
    alternatives: list[Variant] = field(default_factory=list)
    given: Array | None = None


class Recomputer:
    """Computes blamed results again. ``find_partner_step``: (rank, step) -> the reference's step."""

    def __init__(
        self,
        reference: Side | None,
        candidate: Side,
        alignment: Alignment,
        replay: ReplayProvider,
        find_partner_step: Callable[[int, int], int | None],
    ) -> None:
        self._reference, self._candidate = reference, candidate
        self._alignment, self._replay, self._find_partner_step = alignment, replay, find_partner_step

    def recompute(self, first: Divergence, variants: bool = True) -> Recomputed | None:
        """None where there is no way to. ``variants``: also try what else the code may be, which takes seconds."""
        try:
            if first.op == "gradient":
                return self._recompute_total(first)
            if first.site == Site.PARAMETERS:
                return self._pair_parameter(first)
            if first.phase == Phase.STEP:
                return self._recompute_update(first) if variants else None
            return self._find_call(first, variants)
        except (KeyError, DumpError):  # a payload that is not stored, or damaged: the verdict stands without a guess
            return None

    def _find_call(self, first: Divergence, variants: bool) -> Recomputed | None:
        for node in self._candidate.nodes:
            if node.scope != first.scope:
                continue
            for child, holder in [(-1, node), *enumerate(node.children)]:
                for record in holder.tensors.values():
                    if str(record.key) == first.key:
                        place = node, child, record.key.path, first.phase == Phase.BACKWARD
                        return self._recompute_call(place, record, variants)
        return None

    def _recompute_call(
        self, place: tuple[Node, int, str, bool], record: TensorRecord, variants: bool
    ) -> Recomputed | None:
        node, child, _, backward = place
        found = self._replay.compute(*place)
        if found is None:
            return None
        actual = self._read(self._candidate, record)
        golden = found[0].astype(actual.dtype)
        golden = golden.reshape(actual.shape) if golden.size == actual.size == 1 else golden
        if not variants:
            return Recomputed(record, actual, golden)
        others = [*self._find_same(node, record), *self._replay.search_variants(*place, actual, golden, record.dtype)]
        floating = [item for item in node.inputs.values() if item.dtype.startswith(("float", "bfloat"))]
        is_plain = child < 0 and not backward and not node.children and len(floating) == 1
        given = self._read(self._candidate, floating[0]) if is_plain else None
        return Recomputed(record, actual, golden, others, given)

    def _find_same(self, node: Node, record: TensorRecord) -> Iterator[Variant]:
        """An earlier tensor of the same call that this one equals bit for bit: it was taken for it."""
        for holder, kind, records in _list_others(node, record.key.role == Role.GRADIENT):
            for path, other in records.items():
                if other.order < record.order and is_equal(other, record) and _is_varied(other):
                    where = f"{holder.scope or 'the root'}{f', {path}' if path else ''}"
                    text = f"it is the {kind} of {where} (call {holder.number}), bit for bit"
                    yield "another tensor", text, self._read(self._candidate, other)

    def _pair_parameter(self, first: Divergence) -> Recomputed | None:
        """Weights that the runs start from: the reference's are right."""
        if self._reference is None:
            return None
        for rank, step in self._list_steps():
            partner = self._find_partner_step(rank, step)
            for role in (Role.PARAMETER, Role.BUFFER):
                found = self._candidate.select_state(rank, step, role, Phase.FORWARD)
                theirs = self._reference.select_state(rank, step if partner is None else partner, role, Phase.FORWARD)
                for place, record in found.items():
                    if str(record.key) == first.key and place in theirs:
                        return self._pair(record, self._read(self._reference, theirs[place]))
        return None

    def _recompute_total(self, first: Divergence) -> Recomputed | None:
        """A whole gradient: the sum of its calls' shares, times what the reference has of them."""
        for rank, step in self._list_steps():
            partner = self._find_partner_step(rank, step)
            if self._reference is not None and partner is not None:
                for phase in (Phase.STEP, Phase.BACKWARD):
                    for place, record in self._candidate.select_state(rank, step, Role.GRADIENT, phase).items():
                        if str(record.key) == first.key:
                            golden = find_expected(self._candidate, (rank, step), self._reference, partner, place)
                            return None if golden is None else self._pair(record, golden)
        return None

    def _recompute_update(self, first: Divergence) -> Recomputed | None:
        for rank, step in self._list_steps():
            for role in (Role.PARAMETER, Role.STATE):
                for place, record in self._candidate.select_state(rank, step, role, Phase.STEP).items():
                    if str(record.key) != first.key:
                        continue
                    update = build_update(
                        self._candidate, self._reference, rank, step, self._find_partner_step(rank, step)
                    )
                    _, name, local = split_state(place[1]) if role == Role.STATE else ("", "", place[1])
                    found = self._replay.search_updates(update, ((place[0], local), name))
                    return None if found is None else self._pair(record, *found)
        return None

    def _pair(self, record: TensorRecord, golden: Array, others: list[Variant] | None = None) -> Recomputed:
        return Recomputed(record, self._read(self._candidate, record), golden, others or [])

    def _list_steps(self) -> list[tuple[int, int]]:
        return sorted({(unit.rank, unit.step) for unit in self._candidate.units})

    def _read(self, side: Side, record: TensorRecord) -> Array:
        values = side.dump.values(record.key)
        return values.astype(np.complex128 if values.dtype.kind == "c" else np.float64)


def _list_others(node: Node, backward: bool) -> Iterator[tuple[Node, str, dict[str, TensorRecord]]]:
    yield node, "gradient" if backward else "input", node.gradients if backward else node.inputs
    for child in node.children:
        yield child, "gradient" if backward else "output", child.gradients if backward else child.outputs


def _is_varied(record: TensorRecord) -> bool:
    """Not one number all over, which many tensors may be."""
    known = record.statistics
    return known is not None and known.minimum != known.maximum
