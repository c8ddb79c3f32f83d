"""The inner half of the payload hash: 256 KiB of data folded into 2 KiB, in integer arithmetic only.

A block is a matrix of little-endian 64-bit words with 128 columns ("lanes") and up to 256 rows. With T a fixed table of
random 64-bit words, t = word ^ T[row + lane], lo and hi the halves of t::

    first[lane]  = sum over rows of hi[lane]              * lo[lane]   mod 2**64
    second[lane] = sum over rows of hi[(lane + 1) % 128]  * lo[lane]   mod 2**64

The products are those of NH (Black, Halevi, Krawczyk, Krovetz, Rogaway, 1999) with XOR for the keyed addition. Every
half word stands in two products with different partners, so what one sum misses with a chance of 2**-32 (a changed half
whose partner is zero after the key) the other still sees: 2**-64 for two blocks that differ in one lane, less the more
lanes they differ in. :mod:`precision_align.storage.hashing` hashes the 2 KiB and the length, which mixes and orders
them. This guards against accidents, not against somebody who wants a collision.
"""

from __future__ import annotations

import numpy as np

from precision_align.core.dtypes import Array
from precision_align.numerics.summaries import load_summaries

LANES = 128
ROWS = 256
ROW_BYTES = 8 * LANES
BLOCK_BYTES = ROW_BYTES * ROWS
# Three scratch arrays of 128 KiB stay in a core's L2 cache; fewer rows cost more calls.
_STEP = 128

_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)


def make_table() -> Array:
    """T: uint64[384], SplitMix64 (Steele, Lea and Flood, 2014) of 1, 2, 3 and so on."""
    with np.errstate(over="ignore"):
        state = np.arange(1, LANES + ROWS + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(state ^ (state >> np.uint64(31)))


TABLE = make_table()
_KEYS = np.lib.stride_tricks.sliding_window_view(TABLE, LANES)[:ROWS]


class Folder:
    """Folds blocks, with scratch memory of its own (at most 384 KiB); one instance serves one thread.

    ``compiled``: use the compiled function where there is one; the result is the same.
    """

    def __init__(self, *, compiled: bool = True) -> None:
        self._compiled = load_summaries() if compiled else None
        self._scratch = np.empty((3, 1, LANES), dtype=np.uint64)

    def fold(self, data: Array) -> Array:
        """uint64[blocks, 2, 128] of uint8[n]; the last row is filled up with zeros."""
        sums = np.zeros((-(-data.size // BLOCK_BYTES), 2, LANES), dtype=np.uint64)
        if self._compiled is not None:
            self._compiled.fold(data, TABLE, sums)
            return sums
        for number, block in enumerate(sums):
            self._fold_block(data[number * BLOCK_BYTES : (number + 1) * BLOCK_BYTES], block)
        return sums

    def _fold_block(self, data: Array, sums: Array) -> None:
        spare = -data.size % ROW_BYTES
        if spare:
            data = np.concatenate([data, np.zeros(spare, dtype=np.uint8)])
        words = data.view("<u8").reshape(-1, LANES)
        if self._scratch.shape[1] < min(len(words), _STEP):
            self._scratch = np.empty((3, min(len(words), _STEP), LANES), dtype=np.uint64)
        for start in range(0, len(words), _STEP):
            self._add(words[start : start + _STEP], _KEYS[start : start + _STEP], sums)

    def _add(self, words: Array, keys: Array, sums: Array) -> None:
        count = len(words)
        high, low, product = self._scratch[:, :count]
        np.bitwise_xor(words, keys[:count], out=high)
        np.bitwise_and(high, _LOW, out=low)
        np.right_shift(high, _HALF, out=high)
        np.multiply(high, low, out=product)
        sums[0] += np.add.reduce(product, axis=0)
        np.multiply(high[:, 1:], low[:, :-1], out=product[:, :-1])
        np.multiply(high[:, 0], low[:, -1], out=product[:, -1])
        sums[1] += np.add.reduce(product, axis=0)
