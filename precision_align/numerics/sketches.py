"""The linear sketch of a tensor: a few hundred float64 numbers that keep its distances.

``S(x)[j] = sum over i of x[i*k + j] * r[(i*k + j) mod 8191]`` over the flat C order, with ``r`` a fixed sequence of
+1 and -1. Because S is linear, ``||S(x) - S(y)|| = ||S(x - y)||``, and for a random sign sequence its expectation in
square is ``||x - y||**2`` (the AMS, or "tug of war", sketch of Alon, Matias and Szegedy, 1996, in k buckets).

**Resolution.** One norm estimate has a relative standard deviation of about ``1 / sqrt(2 k)``: 2.2 % at k = 1024,
9 % at k = 64. A difference confined to one element per bucket is found exactly. **Floor.** The sums run in float64
with a rounding error of about ``2**-53 * sqrt(numel / k)`` of the sketch: relative differences below about 1e-14 are
rounding noise, except that bit-equal tensors always have bit-equal sketches (distance exactly 0).

**Blind spots.** Both come from the period. A constant bias over the whole tensor is overstated by about
sqrt(numel / (8191 k)) beyond 2**23 elements. A bias of one column of a matrix whose width is a multiple of k (1024,
4096) falls into one bucket, where its signs add up to sqrt(rows) only on average over the columns: about one column
in ten shows less than an eighth of its bias. Other widths spread a column over k / gcd(width, k) buckets. Dense noise,
scales, permutations, rows and single elements have no such weakness.
"""

from __future__ import annotations

import functools
import math

import numpy as np

from precision_align.core.dtypes import Array, Dtype, widen
from precision_align.numerics.statistics import BLOCK, iterate_blocks

# Prime, so that no power-of-two stride inside a tensor falls in step with the signs.
PERIOD = 8191
# Which stretch of the generator is r. 8191 = 2**13 - 1 makes steps by a power of two run through neighbouring signs, so
# a constant tensor sees few independent sums and most stretches misjudge it by 30 % and more. Of the first 6000 this
# one is best: constants of 2**16 to 2**22 elements are within 9 % of their size, and the signs of a whole period add up
# to 89 in size (sqrt(8191) = 90.5), so that longer ones are overstated rather than missed.
_STRETCH = 2735
MIN_BUCKETS = 64
MAX_BUCKETS = 1024
# Below this many bytes the tensor itself is no larger than a sketch worth having: it is stored whole.
WHOLE_BELOW_BYTES = 4096


def count_buckets(numel: int) -> int:
    """k: the largest power of two <= numel / 1024, between 64 and 1024."""
    wanted = max(numel // 1024, 1)
    return min(max(1 << (wanted.bit_length() - 1), MIN_BUCKETS), MAX_BUCKETS)


@functools.lru_cache(maxsize=1)
def _repeated_signs() -> Array:
    """r, repeated so that any block finds its signs in one slice, float64.

    The top bit of SplitMix64 (Steele, Lea and Flood, 2014) of the position: no dependence on a random library's
    version, and no algebraic structure, such as that of the maximal-length shift register sequence of the same
    period, whose decimations by powers of two are shifts of one another.
    """
    with np.errstate(over="ignore"):
        state = np.arange(_STRETCH * PERIOD + 1, (_STRETCH + 1) * PERIOD + 1, dtype=np.uint64) * np.uint64(
            0x9E3779B97F4A7C15
        )
        state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        state = state ^ (state >> np.uint64(31))
    signs = np.where(state >> np.uint64(63), 1.0, -1.0)
    return np.resize(signs, BLOCK + PERIOD)


def sketch(words: Array, dtype: Dtype) -> Array:
    """The sketch of raw words of any shape: float64[k].

    Non-finite values count as 0; integers and bools as numbers; a complex tensor as its 2 * numel interleaved real
    and imaginary parts. Extra memory: about 3 MiB.
    """
    parts = 2 if dtype.kind == "complex" else 1
    buckets = count_buckets(words.size * parts)
    result = np.zeros(buckets, dtype=np.float64)
    signs = _repeated_signs()
    position = 0
    with np.errstate(all="ignore"):
        for block in iterate_blocks(words, BLOCK // parts):
            values = _finite_numbers(block, dtype)
            start = position % PERIOD
            values *= signs[start : start + values.size]
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
