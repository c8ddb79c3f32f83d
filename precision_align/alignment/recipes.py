"""How one whole tensor is made of what several ranks hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from precision_align.alignment.layouts import PARTIAL, Cells, Placements, assemble, name_owners
from precision_align.core.dtypes import Array, dtype_of, narrow
from precision_align.core.records import TensorRecord
from precision_align.storage.base import Dump


@dataclass(frozen=True)
class Recipe:
    """How a whole tensor is made: ``records`` on the grid of ranks, one replica along dimensions of unequal ones.

    ``rows``: its rows in the reference's order, None where they are.
    """

    records: Cells
    placements: Placements
    scale: float = 1.0
    rows: Array | None = None

    @property
    def is_sum(self) -> bool:
        """Whether values are computed, not only put together."""
        return self.scale != 1.0 or any(one.startswith(PARTIAL) for one in self.placements)

    @property
    def original(self) -> TensorRecord | None:
        """The one record that is the whole tensor as it is, None where there is more to do."""
        first: TensorRecord = self.records.flat[0]
        plain = self.rows is None and not self.is_sum and not any("Shard" in one for one in self.placements)
        return first if plain else None

    def make_words(self, dump: Dump) -> Array:
        """The raw words of the whole. Raises KeyError where a piece has no payload."""
        pieces = np.empty(self.records.shape, dtype=object)
        for place in np.ndindex(*self.records.shape):
            key = self.records[place].key
            pieces[place] = dump.values(key) if self.is_sum else dump.payload(key)
        whole = self._order(assemble(pieces, self.placements))
        if self.is_sum:
            whole = narrow(np.asarray(whole, dtype=np.float64) * self.scale, dtype_of(self.records.flat[0].dtype))
        return np.ascontiguousarray(whole).reshape(whole.shape)

    def name_owners(self) -> Array:
        """For each element the rank that it comes from, -1 where it is a sum."""
        shapes = np.empty(self.records.shape, dtype=object)
        ranks = np.empty(self.records.shape, dtype=np.int64)
        for place in np.ndindex(*self.records.shape):
            shapes[place], ranks[place] = self.records[place].shape, self.records[place].key.rank
        return self._order(name_owners(shapes, ranks, self.placements))

    def _order(self, whole: Array) -> Array:
        return whole if self.rows is None else whole[self.rows]


def find_stride(shape: Sequence[int]) -> tuple[int, ...]:
    """Of a tensor in C order, in elements."""
    steps = [1]
    for size in reversed(shape[1:]):
        steps.append(steps[-1] * max(size, 1))
    return tuple(reversed(steps)) if shape else ()
