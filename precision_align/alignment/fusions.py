"""Modules that one side has in one and the other in several: query, key and value, or gate and up projections.

They are found by content: the rows of the whole's weight (or, where no weights were recorded, its output) are those of
the parts, in some order: one part after the other, or interleaved by groups of heads.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from precision_align.alignment.contents import FLOOR, MARGIN, SAME, Profile
from precision_align.alignment.partitions import list_partitions
from precision_align.alignment.side import Side
from precision_align.core.dtypes import Array
from precision_align.core.errors import DumpDamaged
from precision_align.core.records import TensorRecord
from precision_align.core.terms import Phase, Role

MOST_PARTS = 4
# So many columns of a weight tell the layout: whole rows move.
COLUMNS = 64


@dataclass(frozen=True, eq=False)
class Fusion:
    """``whole`` holds ``parts`` (aligned scopes, of the other side).

    ``order``: row i of the whole is row order[i] of the joined parts; ``sizes``: rows of each part; ``axis``: of the
    rows in a weight, 1 where weights are kept transposed; ``layout``: the order in words.
    """

    whole: str
    parts: tuple[str, ...]
    whole_is_candidate: bool
    order: Array
    sizes: tuple[int, ...]
    axis: int
    layout: str

    def find_rows(self, part: int) -> Array:
        """Where the rows of one part lie in the whole, in the part's own order."""
        start = sum(self.sizes[:part])
        return np.asarray(np.argsort(self.order, kind="stable")[start : start + self.sizes[part]])

    @property
    def total(self) -> int:
        """Rows of the whole."""
        return sum(self.sizes)


def find_fusions(
    wholes: Sequence[Profile],
    parts: Sequence[Profile],
    sides: tuple[Side, Side],
    parents: Mapping[str | None, str | None],
    *,
    whole_is_candidate: bool,
) -> Iterator[Fusion]:
    """``sides``: that of the wholes, that of the parts; ``parents``: caller of a whole -> its partner."""
    groups: dict[tuple[object, ...], list[Profile]] = defaultdict(list)
    for part in parts:
        if part.node.call.leaf and _width(part):
            groups[part.parent, part.node.fingerprint].append(part)
    for whole in wholes:
        if not whole.node.call.leaf or whole.parent not in parents:
            continue
        for (parent, _), members in groups.items():
            if parent != parents[whole.parent]:
                continue
            found = _find_parts(whole, members, sides, whole_is_candidate)
            if found is not None:
                yield found
                break


def _find_parts(
    whole: Profile, members: Sequence[Profile], sides: tuple[Side, Side], whole_is_candidate: bool
) -> Fusion | None:
    for count in range(2, min(len(members), MOST_PARTS) + 1):
        for start in range(len(members) - count + 1):
            chosen = members[start : start + count]
            if sum(map(_width, chosen)) == _width(whole):
                found = _find_layout(whole, chosen, sides)
                if found is not None:
                    order, parts, axis, layout = found
                    scopes, sizes = (tuple(one.scope for one in parts), tuple(map(_width, parts)))
                    return Fusion(whole.scope, scopes, whole_is_candidate, order, sizes, axis, layout)
    return None


def _width(one: Profile) -> int:
    return one.shapes[0][-1] if len(one.shapes) == 1 and one.shapes[0] else 0


def _find_layout(
    whole: Profile, parts: Sequence[Profile], sides: tuple[Side, Side]
) -> tuple[Array, list[Profile], int, str] | None:
    """(order, parts in the order of joining, axis, words), or None where none fits or another fits nearly as well."""
    for read in (_read_weight, _read_output):
        rows, axis = read(sides[0], whole, _width(whole))
        others = [read(sides[1], part, _width(part)) for part in parts]
        if rows is None or any(other is None or other.shape[1] != rows.shape[1] for other, _ in others):
            continue
        if any(other != axis for _, other in others):
            return None  # weights kept transposed on one side alone are not the same tensors
        chosen = _choose([other for other, _ in others if other is not None], rows)
        if chosen is None:
            return None
        order, places, layout = chosen
        return order, [parts[place] for place in places], axis, layout
    return None


def _choose(parts: Sequence[Array], whole: Array) -> tuple[Array, tuple[int, ...], str] | None:
    size = max(float(np.linalg.norm(whole)), 1e-300)
    tried: list[tuple[float, Array, tuple[int, ...], str]] = []
    orders = itertools.permutations(range(len(parts))) if len(parts) <= 3 else [tuple(range(len(parts)))]
    for places in orders:
        joined = np.concatenate([parts[place] for place in places])
        ends = np.cumsum([0, *(len(parts[place]) for place in places)])
        numbers = [np.arange(start, end) for start, end in itertools.pairwise(ends)]
        for layout, order in list_partitions(numbers):
            tried.append((float(np.linalg.norm(whole - joined[order])) / size, order, places, layout))
    tried.sort(key=lambda item: item[0])
    second = tried[1][0] if len(tried) > 1 else math.inf
    if tried[0][0] > SAME or second <= max(MARGIN * tried[0][0], FLOOR):
        return None
    return tried[0][1:]


def _read_weight(side: Side, one: Profile, width: int) -> tuple[Array | None, int]:
    """Rows of the weight, a sample of its columns; and the axis that its rows lie along."""
    unit = one.node.unit
    owned = side.select_owned(unit.rank, unit.step, Role.PARAMETER, Phase.FORWARD, one.scope)
    matrices = [record for record in owned.values() if len(record.shape) == 2 and width in record.shape]
    values = _read(side, matrices[0]) if len(matrices) == 1 else None
    if values is None:
        return None, 0
    axis = 0 if values.shape[0] == width else 1
    rows = values if axis == 0 else values.T
    return rows[:, np.linspace(0, rows.shape[1] - 1, min(rows.shape[1], COLUMNS)).astype(int)], axis


def _read_output(side: Side, one: Profile, width: int) -> tuple[Array | None, int]:
    """The same of its output's last dimension, where there is no weight to go by."""
    values = _read(side, next(iter(one.node.outputs.values())))
    if values is None:
        return None, 0
    rows = np.moveaxis(values, -1, 0).reshape(width, -1)
    return rows[:, np.linspace(0, rows.shape[1] - 1, min(rows.shape[1], COLUMNS)).astype(int)], 0


def _read(side: Side, record: TensorRecord) -> Array | None:
    try:
        values = side.dump.values(record.key)
    except (KeyError, DumpDamaged):
        return None
    return np.nan_to_num(values.astype(np.float64)) if values.dtype.kind in "fiu" else None
