"""What a module is, its name aside: weights, results, class, and where its first call stands."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from precision_align.alignment.side import Node, Side, Unit
from precision_align.core.errors import DumpDamaged
from precision_align.core.records import TensorRecord
from precision_align.core.terms import Phase, Role
from precision_align.numerics.sketches import fold, relative_distance

# Outputs further apart than this are not taken for the same, however far the next best is: rounding in 8-bit mantissas
# leaves 1e-2 after many layers, and a fault worth looking for may leave ten times that.
SAME = 0.25
# The next best must be so many times further: what is nearly as near could as well be the partner.
MARGIN = 4.0
# Below this two outputs are equal as far as sketches of low precisions go, so that a margin over it means nothing.
FLOOR = 1e-6


@dataclass(frozen=True, eq=False)
class Profile:
    """One module in the first compared step: ``node``: its first call; ``parameters``: its own."""

    node: Node
    parameters: Sequence[TensorRecord]

    @cached_property
    def weights(self) -> frozenset[bytes]:
        """Hashes of its parameters but for single numbers, which many modules may have."""
        return frozenset(one.digest for one in self.parameters if one.is_hashed and math.prod(one.shape) > 1)

    @property
    def scope(self) -> str:
        """The aligned module path."""
        return self.node.scope

    @property
    def parent(self) -> str | None:
        """The module that made the first call; None for an outermost one."""
        return None if self.node.parent is None else self.node.parent.scope

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Of its outputs; a batch of one or a flattened batch is not undone."""
        return tuple(record.shape for record in self.node.outputs.values())

    @property
    def kind(self) -> str:
        """The class of a stock module, "" for others: two programs may call one thing by two classes."""
        kind = self.node.call.kind
        return kind if kind.startswith("torch.nn.modules.") else ""

    def may_be(self, other: Profile) -> bool:
        """Whether nothing speaks against it: output shapes, classes of stock modules."""
        return self.shapes == other.shapes and (not self.kind or not other.kind or self.kind == other.kind)


def profile(side: Side, unit: Unit) -> dict[str, Profile]:
    """Every module called in a micro-batch, by aligned scope, in the order of its first call."""
    owned: dict[str, list[TensorRecord]] = defaultdict(list)
    for (scope, _), record in side.select_state(unit.rank, unit.step, Role.PARAMETER, Phase.FORWARD).items():
        owned[scope].append(record)
    nodes = sorted((node for node in side.nodes if node.unit == unit), key=lambda node: node.call.enter)
    found: dict[str, Profile] = {}
    for node in nodes:
        found.setdefault(node.scope, Profile(node, owned[node.scope]))
    return found


def pair_by_weights(ours: Iterable[Profile], theirs: Iterable[Profile]) -> dict[str, str]:
    """Modules whose own parameters are bit-equal, and no other's are."""
    left, right = ([one for one in side if one.weights] for side in (ours, theirs))
    counts = [Counter(one.weights for one in side) for side in (left, right)]
    known = {one.weights: one.scope for one in right if counts[1][one.weights] == 1}
    return {one.scope: known[one.weights] for one in left if counts[0][one.weights] == 1 and one.weights in known}


class Likeness:
    """Distances between outputs of the two sides; each sketch is read once."""

    def __init__(self, ours: Side, theirs: Side) -> None:
        self._sides = ours, theirs
        self._sketches: dict[tuple[int, str], np.ndarray | None] = {}

    def pair(self, ours: Sequence[Profile], theirs: Sequence[Profile]) -> dict[str, str]:
        """Modules whose outputs are nearest to each other, both ways, and by a margin."""
        found: dict[str, str] = {}
        groups: dict[tuple[object, ...], tuple[list[Profile], list[Profile]]] = defaultdict(lambda: ([], []))
        for number, side in enumerate((ours, theirs)):
            for one in side:
                if one.shapes and one.node.outputs:
                    groups[one.shapes][number].append(one)
        for left, right in groups.values():
            if left and right:
                found.update(self._pair_group(left, right))
        return found

    def _pair_group(self, left: Sequence[Profile], right: Sequence[Profile]) -> dict[str, str]:
        apart = np.array([[self.measure(one, other) for other in right] for one in left])
        found = {}
        for row, one in enumerate(left):
            column = int(np.argmin(apart[row]))
            nearest = float(apart[row, column])
            others = np.concatenate([np.delete(apart[row], column), np.delete(apart[:, column], row)])
            second = float(others.min(initial=math.inf))
            if nearest <= SAME and second > max(MARGIN * nearest, FLOOR):
                found[one.scope] = right[column].scope
        return found

    def measure(self, one: Profile, other: Profile) -> float:
        """The relative distance of the first outputs; Inf where something speaks against the pair."""
        if not one.may_be(other):
            return math.inf
        records = next(iter(one.node.outputs.values())), next(iter(other.node.outputs.values()))
        if records[0].is_hashed and records[0].has_hash_of(records[1]):
            return 0.0
        left, right = (self._read(number, record) for number, record in enumerate(records))
        if left is None or right is None:
            return math.inf
        size = min(len(left), len(right))
        return relative_distance(fold(left, size), fold(right, size))

    def _read(self, side: int, record: TensorRecord) -> np.ndarray | None:
        place = side, str(record.key)
        if place not in self._sketches:
            try:
                self._sketches[place] = self._sides[side].dump.sketch(record.key)
            except (KeyError, DumpDamaged):
                self._sketches[place] = None
        return self._sketches[place]


def pair_in_order(ours: Sequence[Profile], theirs: Sequence[Profile], known: Mapping[str, str]) -> dict[str, str]:
    """Modules that stand alike between two that are paired: as many on both sides, of the same shapes and classes.

    ``ours``, ``theirs``: what one module calls, in order; ``known``: the pairs so far.
    """
    places = {one.scope: index for index, one in enumerate(theirs)}
    anchors = [(index, places[known[one.scope]]) for index, one in enumerate(ours) if known.get(one.scope) in places]
    taken = set(known.values())
    found = {}
    start = -1, -1
    for end in [*_keep_rising(anchors), (len(ours), len(theirs))]:
        left = [one for one in ours[start[0] + 1 : end[0]] if one.scope not in known]
        right = [one for one in theirs[start[1] + 1 : end[1]] if one.scope not in taken]
        if len(left) == len(right) and all(one.may_be(other) for one, other in zip(left, right)):
            found.update({one.scope: other.scope for one, other in zip(left, right)})
        start = end
    return found


def _keep_rising(anchors: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """The longest part of the anchors that keeps the order on both sides; what crosses it bounds nothing."""
    best: list[list[tuple[int, int]]] = []
    for anchor in anchors:
        before = max((chain for chain in best if chain[-1][1] < anchor[1]), key=len, default=[])
        best.append([*before, anchor])
    return max(best, key=len, default=[])
