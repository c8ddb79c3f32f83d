"""Summaries of raw tensor words in one blocked pass, with float64 accumulation and bounded extra memory."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from precision_align.core.dtypes import Array, Dtype, widen
from precision_align.core.records import Statistics
from precision_align.numerics.summaries import FORMS, load_summaries

# 64 Ki float64 values are 512 KiB: a block and its scratch stay in a core's L2 cache (the fastest of 16 Ki to 1 Mi).
BLOCK = 1 << 16

# Squares of values within 2**-400 .. 2**400 neither overflow nor lose their weight in a float64 sum; beyond, a float64
# tensor is summed again after scaling by its largest exponent.
SAFE_EXPONENT = 400


def iterate_blocks(words: Array, size: int = BLOCK) -> Iterator[Array]:
    """1-D pieces of ``words`` in C order, ``size`` elements each and the last one shorter.

    A C-contiguous array is cut without a copy; any other is copied one piece at a time.
    """
    flat: Any = words.reshape(-1) if words.flags.c_contiguous else words.flat
    for start in range(0, words.size, size):
        yield flat[start : start + size]


def magnitudes(block: Array, dtype: Dtype) -> Array:
    """The numbers of a 1-D block of raw words in float64; of complex numbers the modulus, NaN where a part is NaN."""
    if dtype.kind != "complex":
        return np.asarray(widen(block, dtype), dtype=np.float64)
    values = widen(block, dtype).astype(np.complex128)
    modulus = np.abs(values)
    # hypot(inf, nan) is inf by IEEE 754; a NaN part must stay visible.
    modulus[np.isnan(values.real) | np.isnan(values.imag)] = np.nan
    return np.asarray(modulus)


class _Summary:
    """Running counts, extremes and per-block sums of one tensor; ``exponent``: values are scaled by 2**-exponent."""

    def __init__(self, numel: int, smallest: float, exponent: int = 0) -> None:
        self.smallest = smallest
        self.exponent = exponent
        self.numel = self.nan = self.inf = self.zero = self.subnormal = 0
        self.minimum, self.maximum = math.inf, -math.inf
        self.sums: list[float] = []
        self.squares: list[float] = []
        self._scratch = np.empty(min(numel, BLOCK), dtype=np.float64)
        self._mask = np.empty(min(numel, BLOCK), dtype=np.bool_)

    def add(self, block: Array) -> None:
        """Take one float64 block."""
        self.numel += block.size
        if not math.isfinite(float(block.sum())):  # a NaN, an Inf, or an overflow of the sum: only then look closer
            block = self._drop_nonfinite(block)
        if block.size == 0:
            return
        self.minimum = min(self.minimum, float(block.min()))
        self.maximum = max(self.maximum, float(block.max()))
        self._count_small(block)
        if self.exponent:
            block = np.ldexp(block, -self.exponent)
        self.sums.append(float(block.sum()))
        # Not np.dot: BLAS splits it over threads, which costs more than it saves here and makes the sum depend on them.
        self.squares.append(float(np.multiply(block, block, out=self._scratch[: block.size]).sum()))

    def _drop_nonfinite(self, block: Array) -> Array:
        finite = np.isfinite(block)
        nan = int(np.count_nonzero(np.isnan(block)))
        self.nan += nan
        self.inf += block.size - int(np.count_nonzero(finite)) - nan
        return block[finite]

    def _count_small(self, block: Array) -> None:
        absolute = np.abs(block, out=self._scratch[: block.size])
        if self.smallest:
            below = int(np.count_nonzero(np.less(absolute, self.smallest, out=self._mask[: block.size])))
            if not below:
                return
            zero = block.size - int(np.count_nonzero(block))
            self.subnormal += below - zero
        else:
            zero = block.size - int(np.count_nonzero(block))
        self.zero += zero

    @property
    def largest(self) -> float:
        """The largest magnitude; 0 where nothing is finite."""
        return max(abs(self.minimum), abs(self.maximum)) if self.sums else 0.0

    def result(self) -> Statistics:
        counts = (self.numel, self.nan, self.inf, self.zero, self.subnormal)
        finite = self.numel - self.nan - self.inf
        if not finite:
            return Statistics(*counts, math.nan, math.nan, math.nan, math.nan)
        mean = math.fsum(self.sums) / finite
        with np.errstate(over="ignore", under="ignore"):
            mean = float(np.ldexp(mean, self.exponent))
            l2 = float(np.ldexp(math.sqrt(math.fsum(self.squares)), self.exponent))
        return Statistics(*counts, self.minimum, self.maximum, mean, l2)


def summarize(words: Array, dtype: Dtype) -> Statistics:
    """The statistics of one tensor given as raw words, of any shape.

    Sums run over the finite values in float64, blocks of 64 Ki elements joined exactly (``math.fsum``); integers,
    bools and raw quantized codes count as numbers (beyond 2**53 the extremes are rounded to float64), complex numbers
    by modulus. A complex value with a NaN part counts as NaN. Where there is a C compiler (see
    :mod:`~precision_align.numerics.summaries`) the sums are those of another order, equal within float64 rounding.
    Extra memory: about 3 MiB whatever the size.
    """
    compiled = load_summaries() if dtype.name in FORMS else None
    if compiled is not None:
        found = compiled.summarize([words] if words.flags.c_contiguous else iterate_blocks(words), dtype.name)
        if dtype.name != "float64" or is_safe(max(abs(found.minimum), abs(found.maximum))):
            return found
    smallest = dtype.smallest if dtype.is_floating else 0.0
    with np.errstate(all="ignore"):
        summary = _accumulate(words, dtype, _Summary(words.size, smallest))
        largest = summary.largest
        if not is_safe(largest):
            exponent = math.frexp(largest)[1]
            summary = _accumulate(words, dtype, _Summary(words.size, smallest, exponent))
        return summary.result()


def is_safe(largest: float) -> bool:
    """Whether squares of values up to this neither overflow nor vanish."""
    return not largest or abs(math.frexp(largest)[1]) <= SAFE_EXPONENT


def _accumulate(words: Array, dtype: Dtype, summary: _Summary) -> _Summary:
    for block in iterate_blocks(words):
        summary.add(magnitudes(block, dtype))
    return summary
