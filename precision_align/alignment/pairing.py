"""Which call of the reference answers to which call of the candidate.

Micro-batches are paired by what the model was fed, then by number, so that a warm-up or a skipped batch on one side
shifts nothing. Calls of one module within a micro-batch likewise: equal input fingerprints first, then order.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence
from difflib import SequenceMatcher

from precision_align.alignment.side import Node, Side, Unit, collect_fingerprints


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
            for unit, partner in self.units.items():
                self._pair_calls(reference, unit, partner)
        paired = set(self.pairs.values())
        self.missing: list[Node] = [
            node
            for node in (reference.nodes if reference is not None else [])
            if node not in paired and node.unit in set(self.units.values())
        ]

    def _pair_units(self, reference: Side) -> None:
        for rank in sorted({unit.rank for unit in self.candidate.units}):
            ours = [unit for unit in self.candidate.units if unit.rank == rank]
            theirs = [unit for unit in reference.units if unit.rank == rank]
            if not theirs:
                self.notes.append(f"rank {rank} is not in the reference")
                continue
            self._pair_rank(reference, ours, theirs)

    def _pair_rank(self, reference: Side, ours: list[Unit], theirs: list[Unit]) -> None:
        same = [unit for unit in ours if unit in set(theirs)]
        prints = {unit: collect_fingerprints(self.candidate.roots[unit]) for unit in ours}
        other_prints = {unit: collect_fingerprints(reference.roots[unit]) for unit in theirs}
        matching = sum(prints[unit] == other_prints[unit] for unit in same)
        by_content = match_in_order([prints[unit] for unit in ours], [other_prints[unit] for unit in theirs])
        if len(by_content) > matching:
            pairs = {ours[left]: theirs[right] for left, right in by_content}
            self._note_shift(pairs)
        else:
            pairs = {unit: unit for unit in same}
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

    def _pair_calls(self, reference: Side, unit: Unit, partner: Unit) -> None:
        for (at, scope), nodes in self.candidate.by_scope.items():
            if at != unit:
                continue
            others = reference.by_scope.get((partner, scope), [])
            self.pairs.update(self._pair_scope(scope, nodes, others))

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
    blocks = SequenceMatcher(None, ours, theirs, autojunk=False).get_matching_blocks()
    return [(block.a + offset, block.b + offset) for block in blocks for offset in range(block.size)]


def pair_equal_counts(nodes: Sequence[Node], others: Sequence[Node]) -> dict[Node, Node]:
    """By content where both sides have the same inputs in another order, the rest by number."""
    pairs = {node: other for node, other in zip(nodes, others) if node.fingerprint == other.fingerprint}
    free: dict[object, list[Node]] = defaultdict(list)
    for other in others:
        if other not in set(pairs.values()):
            free[other.fingerprint].append(other)
    for node in nodes:
        if node not in pairs and node.fingerprint and free[node.fingerprint]:
            pairs[node] = free[node.fingerprint].pop(0)
    left = [node for node in nodes if node not in pairs]
    right = [other for other in others if other not in set(pairs.values())]
    pairs.update(zip(left, right))
    return pairs
