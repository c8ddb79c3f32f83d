"""The linear sketch of a tensor: a few hundred float64 numbers that keep its distances.

``S(x)[j] = sum over i of x[i*k + j] * r[i*k + j]`` over the flat C order, with ``r[n] = p[n mod 8191] * q[n mod 8179]``
and p, q fixed sequences of +1 and -1. Because S is linear, ``||S(x) - S(y)|| = ||S(x - y)||``, and for a random sign
sequence its expectation in square is ``||x - y||**2`` (the AMS, or "tug of war", sketch of Alon, Matias and Szegedy,
1996, in k buckets). k is 127, 254, 508 or 1016, so that shorter ones are folded longer ones.

**Resolution.** One norm estimate has a relative standard deviation of about ``1 / sqrt(2 k)``: 2.2 % at k = 1016,
6 % at k = 127. A difference confined to one element per bucket is found exactly. **Floor.** The sums run in float64
with a rounding error of about ``2**-53 * sqrt(numel / k)`` of the sketch: relative differences below about 1e-14 are
rounding noise, except that bit-equal tensors always have bit-equal sketches (distance exactly 0).

**Why these numbers.** 127 is odd: one column of a matrix whose width is a power of two (or 3 or 11 times one) spreads
over 127 buckets instead of falling into one, where its signs add up to its size only on average. Measured over columns
of widths 768 to 11008 the column's own norm is seen at 0.84 to 1.19 of its size (at k = 1024 it was 0.00 to 2.1). Two
periods without a common divisor make one of 67 million: a constant bias of 2**12 to 2**24 elements is seen within 4 %
(with 8191 alone 39 % too large at 2**24). **Blind spot.** A single column of a matrix whose width is a multiple of k
(127, 254, 508, 1016) falls into one bucket still: about one in ten shows less than an eighth of its bias. Dense noise,
scales, permutations, rows and single elements have no such weakness.
"""

from __future__ import annotations

import functools
import math

import numpy as np

from precision_align.core.dtypes import Array, Dtype, widen
from precision_align.numerics.statistics import iterate_blocks

# Counts the definitions of the sketch: sketches of different kinds must not be compared. Kind 0 had k = 64 to 1024 and
# the first sequence alone.
SKETCH_KIND = 1
# Primes, so that no power-of-two stride inside a tensor falls in step with the signs.
PERIODS = (8191, 8179)
# Which stretches of the generator are p and q: the first is that of kind 0, the second of 120 the one with which
# constant tensors of 2**12 to 2**22 elements are seen best (within 3.2 %).
_STRETCHES = (2735, 100)
MIN_BUCKETS = 127
MAX_BUCKETS = 1016
# 508 KiB of float64, close to the block of the statistics; whole rows of buckets, so that blocks simply add up.
BLOCK = 64 * MAX_BUCKETS
# A sketch has at most one float64 for so many elements: with its index row a float32 tensor of 4 MB or more takes 1000
# times less. Fewer elements a bucket were more precise, at the cost of that.
_ELEMENTS_PER_BUCKET = 4096
# Below this many bytes the tensor itself is no larger than a sketch worth having: it is stored whole.
WHOLE_BELOW_BYTES = 4096


def count_buckets(numel: int) -> int:
    """k: the largest of 127, 254, 508, 1016 that leaves 4096 elements a bucket; 127 for fewer elements."""
    buckets = MIN_BUCKETS
    while buckets < MAX_BUCKETS and 2 * buckets * _ELEMENTS_PER_BUCKET <= numel:
        buckets *= 2
    return buckets


@functools.cache
def repeated_signs(which: int) -> Array:
    """p (0) or q (1), repeated so that any block finds its signs in one slice: float64[BLOCK + period].

    The top bit of SplitMix64 (Steele, Lea and Flood, 2014) of the position: no dependence on a random library's
    version, and no algebraic structure, such as that of the maximal-length shift register sequence of the period 8191,
    whose decimations by powers of two are shifts of one another.
    """
    period, stretch = PERIODS[which], _STRETCHES[which]
    with np.errstate(over="ignore"):
        state = np.arange(stretch * period + 1, (stretch + 1) * period + 1, dtype=np.uint64) * np.uint64(
            0x9E3779B97F4A7C15
        )
        state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        state = state ^ (state >> np.uint64(31))
    signs = np.where(state >> np.uint64(63), 1.0, -1.0)
    return np.resize(signs, BLOCK + period)


def sketch(words: Array, dtype: Dtype) -> Array:
    """The sketch of raw words of any shape: float64[k].

    Non-finite values count as 0; integers and bools as numbers; a complex tensor as its 2 * numel interleaved real
    and imaginary parts. Extra memory: about 3 MiB.
    """
    parts = 2 if dtype.kind == "complex" else 1
    buckets = count_buckets(words.size * parts)
    result = np.zeros(buckets, dtype=np.float64)
    position = 0
    with np.errstate(all="ignore"):
        for block in iterate_blocks(words, BLOCK // parts):
            values = _finite_numbers(block, dtype)
            for which, period in enumerate(PERIODS):
                start = position % period
                values *= repeated_signs(which)[start : start + values.size]
            result += _sum_buckets(values, buckets)
            position += values.size
    return result


def _finite_numbers(block: Array, dtype: Dtype) -> Array:
    """A fresh float64 copy with NaN and Inf replaced by 0."""
    numbers = widen(block, dtype)
    if dtype.kind == "complex":
        numbers = numbers.astype(np.complex128).view(np.float64)
    values = numbers.astype(np.float64, copy=True)
    if not math.isfinite(float(values.sum())):
        values[~np.isfinite(values)] = 0.0
    return values


def _sum_buckets(values: Array, buckets: int) -> Array:
    whole = values.size - values.size % buckets
    sums = values[:whole].reshape(-1, buckets).sum(axis=0)
    sums[: values.size - whole] += values[whole:]
    return np.asarray(sums)


def fold(sketch: Array, buckets: int) -> Array:
    """The sketch of the same tensor with fewer buckets. Raises ValueError where they do not divide its length."""
    if buckets < 1 or sketch.size % buckets:
        raise ValueError(f"a sketch of {sketch.size} buckets cannot be folded to {buckets}")
    return np.asarray(sketch.reshape(-1, buckets).sum(axis=0))


def relative_distance(a: Array, b: Array) -> float:
    """An estimate of ``||x - y|| / ||x||`` from the sketches of x and y, after folding to the smaller one.

    0.0 for two zero tensors, inf where only x is zero. Raises ValueError where neither length divides the other.
    """
    buckets = min(a.size, b.size)
    x, y = fold(a, buckets), fold(b, buckets)
    with np.errstate(all="ignore"):
        difference, norm = float(np.linalg.norm(x - y)), float(np.linalg.norm(x))
    if difference == 0.0:
        return 0.0
    return difference / norm if norm else math.inf
