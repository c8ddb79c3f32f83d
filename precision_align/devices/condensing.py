"""Hash, statistics and sketch of a tensor where it lies: what torch operators of the device make of it.

Each function queues operators on the device's current stream and returns small tensors of that device; nothing waits
and nothing is copied to the host. The host puts them together (:mod:`precision_align.recording.summaries`):

* the fold of the payload hash (:mod:`precision_align.numerics.folding`) in int64, whose products and sums wrap modulo
  2**64 as the host's do, so that it is the host's bit for bit;
* per chunk a row of counts, extremes and sums (``COLUMNS``) in float64, or in float32 where the device has no float64.
  Counts and extremes are exact (in float32: of values that float32 holds). Sums of a chunk are the device's own: their
  relative error is about ``log2(chunk)`` roundings where it adds in a tree, 3e-15 in float64 and 2e-6 in float32 of the
  sum of magnitudes; chunks are joined on the host in float64;
* per chunk a sketch of kind 1 (:mod:`precision_align.numerics.sketches`), with the same error.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Optional

import numpy as np
import torch

from precision_align.core.dtypes import Dtype
from precision_align.numerics.folding import BLOCK_BYTES, LANES, ROW_BYTES, ROWS, TABLE, Folder
from precision_align.numerics.sketches import MAX_BUCKETS, PERIODS, repeated_signs

COLUMNS = ("nan", "finite", "zero", "below", "minimum", "maximum", "sum", "squares", "factor")

# Scratch a byte of the hash: the word with its key, its halves, the second half's neighbour, a product, a padded copy.
_FOLD_SCRATCH = 8
# Scratch an element: six float64 at once, complex parts, masks.
_SUM_SCRATCH = 64
_LOW = 0xFFFFFFFF
_HALF = 32
# Powers of two by which values are scaled stay normal numbers.
_LARGEST_SHIFT = {torch.float64: 1000, torch.float32: 120}


def run_natively() -> AbstractContextManager[None]:
    """Without the simulated device's profile and faults: what is measured must not count as a call of the model's."""
    backend = sys.modules.get("precision_align.devices.backend")
    return nullcontext() if backend is None else backend.native()


def is_out_of_memory(error: BaseException) -> bool:
    """Whether a device had no memory left; torch_npu says so with a plain RuntimeError."""
    return isinstance(error, torch.cuda.OutOfMemoryError) or (
        isinstance(error, RuntimeError) and "out of memory" in str(error).lower()
    )


class Condenser:
    """Makes the small tensors on one device, with at most ``scratch`` bytes of it (and 2 MiB) at a time.

    ``wide``: the dtype of sums; ``exact``: whether the device's integers give the host's hash. Making one waits for the
    device, once. Not safe from several threads.
    """

    def __init__(self, device: torch.device, scratch: int) -> None:
        self._device = device
        self._fold_bytes = max(scratch // _FOLD_SCRATCH // BLOCK_BYTES, 1) * BLOCK_BYTES
        numbers = min(scratch // _SUM_SCRATCH, 1 << 24)  # so many float32 counts exactly
        self._numbers = max(numbers // (2 * MAX_BUCKETS), 1) * 2 * MAX_BUCKETS
        self._keys: Optional[torch.Tensor] = None
        self._signs: list[torch.Tensor] = []
        self.wide = torch.float64 if _has_float64(device) else torch.float32
        self.exact = self._folds_exactly()

    def _folds_exactly(self) -> bool:
        """Whether the device folds random bytes as the host does."""
        data = np.random.RandomState(0).bytes(BLOCK_BYTES + 5 * ROW_BYTES + 3)
        words = np.frombuffer(data, dtype=np.uint8).copy()
        try:
            there = torch.from_numpy(words).to(self._device)
            sums = torch.cat(list(self.fold(there))).cpu().numpy()
        except (RuntimeError, TypeError, NotImplementedError) as error:
            if is_out_of_memory(error):
                raise
            return False
        return bool(np.array_equal(sums.reshape(-1).view(np.uint64), Folder().fold(words).reshape(-1)))

    def fold(self, data: torch.Tensor) -> Iterator[torch.Tensor]:
        """int64[blocks, 2, 128] a chunk of uint8[n]; see :meth:`~precision_align.numerics.folding.Folder.fold`."""
        if self._keys is None:
            keys = np.lib.stride_tricks.sliding_window_view(TABLE.view(np.int64), LANES)[:ROWS]
            self._keys = torch.from_numpy(keys.copy()).to(self._device)
        whole = data.numel() - data.numel() % BLOCK_BYTES
        for start in range(0, whole, self._fold_bytes):
            words = _view_words(data[start : min(start + self._fold_bytes, whole)])
            yield _fold_rows(words.view(-1, ROWS, LANES), self._keys)
        if whole < data.numel():
            words = _view_words(data[whole:]).view(1, -1, LANES)
            yield _fold_rows(words, self._keys[: words.shape[1]])

    def condense(self, flat: torch.Tensor, dtype: Dtype, buckets: int) -> Iterator[torch.Tensor]:
        """Of a 1-D tensor: ``wide[len(COLUMNS)]`` a chunk, and behind each ``wide[buckets]`` where not 0."""
        parts = 2 if flat.is_complex() else 1
        limit = float(np.sqrt(torch.finfo(self.wide).max))
        size = self._numbers // parts
        for start in range(0, flat.numel(), size):
            piece = flat[start : start + size]
            values = _magnitudes(piece, self.wide)
            yield _sum_up(values, dtype.smallest, dtype.maximum > limit)
            if buckets:
                numbers = values if parts == 1 else torch.view_as_real(piece).reshape(-1).to(self.wide)
                yield self._sketch(numbers, start * parts, buckets)

    def _sketch(self, numbers: torch.Tensor, start: int, buckets: int) -> torch.Tensor:
        numbers = torch.where(torch.isfinite(numbers), numbers, torch.zeros_like(numbers))
        if not self._signs:
            self._signs = [torch.from_numpy(self._repeat_signs(which)).to(self._device) for which in range(2)]
        for signs, period in zip(self._signs, PERIODS):
            numbers = numbers * signs[start % period :][: numbers.numel()]
        whole = numbers.numel() - numbers.numel() % buckets
        sums = numbers[:whole].view(-1, buckets).sum(0)
        if whole < numbers.numel():
            sums[: numbers.numel() - whole] += numbers[whole:]
        return sums

    def _repeat_signs(self, which: int) -> np.ndarray[tuple[int, ...], np.dtype[np.int8]]:
        period = PERIODS[which]
        return np.resize(repeated_signs(which)[:period].astype(np.int8), self._numbers + period)


def _has_float64(device: torch.device) -> bool:
    """Whether sums are float64's there; some devices refuse it, others compute in float32 under its name."""
    try:
        tiny = torch.full((2,), 2.0**-40, dtype=torch.float64, device=device)
        return float((tiny + 1).sum() - 2) == 2.0**-39
    except (RuntimeError, TypeError, NotImplementedError) as error:
        if is_out_of_memory(error):
            raise
        return False


def _view_words(data: torch.Tensor) -> torch.Tensor:
    """uint8[n] as int64, the last row filled up with zeros; a copy only where it has to be."""
    spare = -data.numel() % ROW_BYTES
    if spare or data.storage_offset() % 8:
        padded = torch.zeros(data.numel() + spare, dtype=torch.uint8, device=data.device)
        padded[: data.numel()].copy_(data)
        data = padded
    return data.view(torch.int64)


def _fold_rows(words: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """int64[blocks, 2, 128] of int64[blocks, rows, 128]."""
    keyed = words ^ keys
    low = keyed & _LOW
    high = (keyed >> _HALF) & _LOW
    del keyed
    first = (high * low).sum(1)
    second = (torch.roll(high, -1, 2) * low).sum(1)
    return torch.stack((first, second), 1)


def _magnitudes(piece: torch.Tensor, wide: torch.dtype) -> torch.Tensor:
    """The numbers themselves; of complex ones the modulus, NaN where a part is NaN."""
    if not piece.is_complex():
        return piece.to(wide)
    real, imaginary = torch.view_as_real(piece).to(wide).unbind(-1)
    unknown = torch.isnan(real) | torch.isnan(imaginary)
    return torch.hypot(real, imaginary).masked_fill_(unknown, math.nan)  # hypot(inf, nan) is inf by IEEE 754


def _sum_up(values: torch.Tensor, smallest: float, scaled: bool) -> torch.Tensor:
    """One row of ``COLUMNS``; ``scaled``: squares may overflow or vanish, so the sums are of ``values * factor``."""
    wide = values.dtype
    finite = torch.isfinite(values)
    nan = torch.isnan(values).sum(dtype=wide)
    clean = torch.where(finite, values, torch.zeros_like(values))
    minimum = torch.where(finite, values, torch.full_like(values, math.inf)).min()
    maximum = torch.where(finite, values, torch.full_like(values, -math.inf)).max()
    zero = (values == 0).sum(dtype=wide)
    count = finite.sum(dtype=wide)
    nonfinite = values.numel() - count
    below = (clean.abs() < smallest).sum(dtype=wide) - nonfinite if smallest else zero
    factor = torch.ones_like(nan)
    if scaled:
        largest = clean.abs().max()
        shift = _LARGEST_SHIFT[wide]
        exponent = torch.log2(torch.where(largest > 0, largest, factor)).floor().clamp(-shift, shift)
        factor = torch.exp2(-exponent)
        clean = clean * factor
    sums = (clean.sum(), (clean * clean).sum())
    return torch.stack((nan, count, zero, below, minimum, maximum, *sums, factor))
