"""The layout of a tensor on several ranks, told from the reference's tensor: by shapes, hashes, and values."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import product

import numpy as np

from precision_align.alignment.layouts import PARTIAL, REPLICATE, UNEQUAL, Cells, Placements, assemble, shard_dimension
from precision_align.core.dtypes import Array
from precision_align.core.records import TensorRecord

Read = Callable[[TensorRecord], Array]


def list_placements(
    records: Cells, shape: tuple[int, ...], partial: Sequence[bool], known: Placements | None = None
) -> list[Placements]:
    """All placements under which the ranks' pieces make up a tensor of a shape.

    ``records``: an object array of the grid's shape; ``partial``: for each of its dimensions whether parts of a sum
    are thinkable; ``known``: placements of which only the dimensions that are not replicated are fixed.
    """
    options = [_list_options(records, axis, len(shape), partial[axis]) for axis in range(records.ndim)]
    if known is not None:
        options = [[one] if one != REPLICATE else each for one, each in zip(known, options)]
    return [placements for placements in product(*options) if find_shape(records, placements) == shape]


def _list_options(records: Cells, axis: int, rank: int, partial: bool) -> list[str]:
    lines = [list(line) for line in np.moveaxis(records, axis, -1).reshape(-1, records.shape[axis])]
    shapes_equal = all(len({record.shape for record in line}) == 1 for line in lines)
    equal = all(len({record.digest for record in line}) == 1 and line[0].digest for line in lines)
    found = [f"Shard({dimension})" for dimension in range(rank)] if records.shape[axis] > 1 else []
    if equal or records.shape[axis] == 1:
        return [REPLICATE, *found]
    if not shapes_equal:
        return found
    return [*found, UNEQUAL, *([PARTIAL] if partial else [])]


def find_shape(records: Cells, placements: Placements) -> tuple[int, ...] | None:
    """The shape of the whole, None where the pieces do not fit together."""
    pieces: Cells = np.empty(records.shape, dtype=object)
    for place in np.ndindex(*records.shape):
        pieces[place] = records[place].shape
    for axis in reversed(range(records.ndim)):
        joined = np.empty(pieces.shape[:-1], dtype=object)
        for place in np.ndindex(*joined.shape):
            shape = _join_shapes(list(pieces[place]), shard_dimension(placements[axis]))
            if shape is None:
                return None
            joined[place] = shape
        pieces = joined
    whole: tuple[int, ...] = pieces[()]
    return whole


def _join_shapes(line: list[tuple[int, ...]], dimension: int | None) -> tuple[int, ...] | None:
    if dimension is None:
        return line[0] if len(set(line)) == 1 else None
    if any(len(one) <= dimension for one in line):
        return None
    others = {one[:dimension] + one[dimension + 1 :] for one in line}
    if len(others) != 1:
        return None
    return (*line[0][:dimension], sum(one[dimension] for one in line), *line[0][dimension + 1 :])


def choose_placements(
    records: Cells, placements: Sequence[Placements], reference: Array, read: Read, scales: Sequence[float]
) -> tuple[Placements, float]:
    """The placements, and the factor, with which the pieces come closest to the reference's tensor.

    Replicas that differ are held by the one that is closest: the question is how they are meant.
    """
    pieces = np.empty(records.shape, dtype=object)
    for place in np.ndindex(*records.shape):
        pieces[place] = read(records[place]).astype(np.float64)
    norm = float(np.linalg.norm(reference)) or 1.0
    best: tuple[float, Placements, float] | None = None
    for one in placements:
        for whole in iterate_wholes(pieces, one):
            for scale in scales:
                error = float(np.linalg.norm(whole * scale - reference)) / norm
                error = error if np.isfinite(error) else float("inf")
                if best is None or error < best[0]:
                    best = error, one, scale
    assert best is not None
    return best[1], best[2]


def iterate_wholes(pieces: Cells, placements: Placements) -> Iterator[Array]:
    """The whole tensor, once for each choice among replicas that differ."""
    unequal = [axis for axis, one in enumerate(placements) if one == UNEQUAL]
    for choice in product(*(range(pieces.shape[axis]) for axis in unequal)):
        yield assemble(choose_replicas(pieces, placements, choice), placements)


def choose_replicas(pieces: Cells, placements: Placements, choice: Sequence[int]) -> Cells:
    """The grid with one replica along each dimension of unequal ones, at ``choice``; the other dimensions stay."""
    unequal = [axis for axis, one in enumerate(placements) if one == UNEQUAL]
    for axis, index in zip(unequal, choice):
        pieces = np.take(pieces, [index], axis=axis)
    return pieces
