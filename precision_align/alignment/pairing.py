"""Which call of the reference answers to which call of the candidate.

Micro-batches are paired by what the model was fed, then by number, so that a warm-up or a skipped batch on one side
shifts nothing. Calls of one module within a micro-batch likewise: equal input fingerprints first, then order.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Hashable, Sequence
from difflib import SequenceMatcher

from precision_align.alignment.side import Node, Side, Unit, collect_fingerprints
from precision_align.core.records import TensorRecord
from precision_align.core.terms import Phase, Role


class Alignment:
    """The pairs of two sides; without a reference everything is unpaired."""

    def __init__(self, reference: Side | None, candidate: Side) -> None:
        self.reference = reference
        self.candidate = candidate
        self.units: dict[Unit, Unit] = {}
        self.pairs: dict[Node, Node] = {}
        self.notes: list[str] = []
        if reference is not None:
            self._pair_units(reference)
            self._pair_calls(reference)

    def pair_owned(self, node: Node) -> list[tuple[TensorRecord, TensorRecord | None]]:
        """A call's own parameters, as they stood at the start of its step, with their partners."""
        unit, partner = node.unit, self.units.get(node.unit)
        kind = Role.PARAMETER, Phase.FORWARD
        ours = self.candidate.select_owned(unit.rank, unit.step, *kind, node.scope)
        theirs = (
            self.reference.select_owned(partner.rank, partner.step, *kind, node.scope)
            if self.reference is not None and partner is not None
            else {}
        )
        return [(record, theirs.get(place)) for place, record in ours.items()]

    def _pair_units(self, reference: Side) -> None:
        for rank in sorted({unit.rank for unit in self.candidate.units}):
            ours = [unit for unit in self.candidate.units if unit.rank == rank]
            theirs = [unit for unit in reference.units if unit.rank == rank]
            if not theirs:
                self.notes.append(f"rank {rank} is not in the reference")
                continue
            self._pair_rank(reference, ours, theirs)

    def _pair_rank(self, reference: Side, ours: list[Unit], theirs: list[Unit]) -> None:
        """By number, unless what the model was fed says that one side is shifted."""
        if ours == theirs and len(ours) == 1:
            self.units[ours[0]] = theirs[0]
            return
        prints = {unit: collect_fingerprints(self.candidate.roots[unit]) for unit in ours}
        other_prints = {unit: collect_fingerprints(reference.roots[unit]) for unit in theirs}
        known = set(theirs)
        pairs = {unit: unit for unit in ours if unit in known}
        matching = sum(prints[unit] == other_prints[unit] for unit in pairs)
        anchors = match_in_order([prints[unit] for unit in ours], [other_prints[unit] for unit in theirs])
        # a shift explains most of both runs; a few equal batches among shuffled ones do not make one
        if len(anchors) > matching and 2 * len(anchors) >= min(len(ours), len(theirs)):
            pairs = {ours[left]: theirs[right] for left, right in fill_gaps(anchors, len(ours), len(theirs))}
            self._note_shift(pairs)
        elif any(prints[unit] != other_prints[unit] for unit in pairs):
            elsewhere = {print_ for print_ in other_prints.values() if print_}
            moved = sum(prints[unit] != other_prints[unit] and prints[unit] in elsewhere for unit in pairs)
            if moved:
                self.notes.append(f"{moved} micro-batches come in another order: the same data, not at the same step")
        self.units.update(pairs)
        left_out = len(ours) - len(pairs)
        if left_out:
            self.notes.append(
                f"{left_out} of {len(ours)} micro-batches of the candidate have no partner in the reference"
            )

    def _note_shift(self, pairs: dict[Unit, Unit]) -> None:
        shifts = {(partner.step - unit.step, partner.micro - unit.micro) for unit, partner in pairs.items()}
        for steps, micros in sorted(shifts - {(0, 0)}):
            self.notes.append(
                f"micro-batches were paired by their inputs: candidate step k matches reference step k{steps:+d}"
                + (f", micro-batch m matches m{micros:+d}" if micros else "")
            )

    def _pair_calls(self, reference: Side) -> None:
        groups: dict[Unit, list[tuple[str, list[Node]]]] = defaultdict(list)
        for (unit, scope), nodes in self.candidate.by_scope.items():
            groups[unit].append((scope, nodes))
        for unit, partner in self.units.items():
            for scope, nodes in groups[unit]:
                self.pairs.update(self._pair_scope(scope, nodes, reference.by_scope.get((partner, scope), [])))

    def _pair_scope(self, scope: str, nodes: Sequence[Node], others: Sequence[Node]) -> dict[Node, Node]:
        if len(nodes) == len(others):
            return pair_equal_counts(nodes, others)
        anchors = match_in_order([node.fingerprint for node in nodes], [node.fingerprint for node in others])
        if not anchors:
            anchors = [(index, index) for index in range(min(len(nodes), len(others)))]
        extra, lacking = len(nodes) - len(anchors), len(others) - len(anchors)
        where = scope or "the root"
        self.notes.append(
            f"{where} is called {len(nodes)} times by the candidate and {len(others)} times by the reference: "
            f"paired {len(anchors)} calls by their inputs, {extra} inserted, {lacking} removed"
        )
        return {nodes[left]: others[right] for left, right in anchors}


def match_in_order(left: Sequence[Hashable], right: Sequence[Hashable]) -> list[tuple[int, int]]:
    """Index pairs of equal items in both orders; an empty fingerprint matches nothing."""
    ours = [item or ("left", index) for index, item in enumerate(left)]
    theirs = [item or ("right", index) for index, item in enumerate(right)]
    start, end = _count_common(ours, theirs)
    pairs = [(index, index) for index in range(start)]
    middle = ours[start : len(ours) - end], theirs[start : len(theirs) - end]
    for block in SequenceMatcher(None, *middle, autojunk=False).get_matching_blocks():
        pairs += [(start + block.a + offset, start + block.b + offset) for offset in range(block.size)]
    return pairs + [(len(ours) - offset, len(theirs) - offset) for offset in range(end, 0, -1)]


def _count_common(left: Sequence[Hashable], right: Sequence[Hashable]) -> tuple[int, int]:
    """Lengths of the common beginning and, behind it, of the common end."""
    shorter = min(len(left), len(right))
    start = next((index for index in range(shorter) if left[index] != right[index]), shorter)
    rest = shorter - start
    end = next((index for index in range(rest) if left[-1 - index] != right[-1 - index]), rest)
    return start, end


def fill_gaps(anchors: Sequence[tuple[int, int]], left: int, right: int) -> list[tuple[int, int]]:
    """Anchors, and between two of them what is left on both sides in order, so that it is compared, too."""
    pairs: list[tuple[int, int]] = []
    at_left = at_right = 0
    for next_left, next_right in [*anchors, (left, right)]:
        pairs += zip(range(at_left, next_left), range(at_right, next_right))
        if next_left < left and next_right < right:
            pairs.append((next_left, next_right))
        at_left, at_right = next_left + 1, next_right + 1
    return pairs


def pair_equal_counts(nodes: Sequence[Node], others: Sequence[Node]) -> dict[Node, Node]:
    """By content where both sides have the same inputs in another order, the rest by number."""
    if len(nodes) == 1:
        return {nodes[0]: others[0]}
    pairs = {node: other for node, other in zip(nodes, others) if node.is_fed_like(other)}
    if len(pairs) == len(nodes):
        return pairs
    taken = set(pairs.values())
    free: dict[object, deque[Node]] = defaultdict(deque)
    for other in others:
        if other not in taken:
            free[other.fingerprint].append(other)
    for node in nodes:
        if node not in pairs and node.fingerprint and free[node.fingerprint]:
            pairs[node] = free[node.fingerprint].popleft()
    taken = set(pairs.values())
    left = [node for node in nodes if node not in pairs]
    right = [other for other in others if other not in taken]
    pairs.update(zip(left, right))
    return pairs
