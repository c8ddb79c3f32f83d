"""A deterministic sample of a tensor's elements: what of it is looked at where the whole is not kept.

The tensor's flat C order is cut into equal stretches, one element of each is taken. Which one depends on the number of
elements alone, so that two runs take the same whatever wrappers add to names and however their steps are numbered, and
no positions have to be stored.

**Power.** Of a fault in a share f of the elements, spread at random, n samples see nothing with a chance of
``(1 - f)**n``: 2048 see one of 0.23 % of the elements with 99 %. A run of neighbouring elements twice as long as a
stretch is always seen. Smaller faults are seen where they move the smallest or the largest value, which the statistics
have, and by the hash, which says that there is a difference, not how large.
"""

from __future__ import annotations

import functools
import math

import numpy as np

from precision_align.core.dtypes import Array, Dtype, widen
from precision_align.numerics.statistics import iterate_blocks

# 16 KB of float64: twice the longest sketch.
SAMPLES = 2048
# The chance with which a report says that a fault would have been seen.
CERTAINTY = 0.99


def sample(words: Array, dtype: Dtype) -> Array:
    """The sampled numbers of raw words of any shape: float64[min(numel, 2048)], of complex tensors real parts before
    imaginary ones. Integers beyond 2**53 are rounded."""
    places = draw_positions(words.size)
    flat = words.reshape(-1) if words.flags.c_contiguous else None
    taken = flat[places] if flat is not None else _take(words, places)
    numbers = widen(taken, dtype)
    with np.errstate(invalid="ignore"):  # a signalling NaN becomes a quiet one
        if dtype.kind == "complex":
            return np.concatenate([numbers.real, numbers.imag]).astype(np.float64)
        return np.asarray(numbers, dtype=np.float64)


def _take(words: Array, places: Array) -> Array:
    """From a strided or broadcast array, without a copy of the whole."""
    taken, start = [], 0
    for block in iterate_blocks(words):
        low, high = np.searchsorted(places, (start, start + block.size))
        taken.append(block[places[low:high] - start])
        start += block.size
    return np.concatenate(taken) if taken else np.zeros(0, words.dtype)


@functools.lru_cache(maxsize=64)
def draw_positions(numel: int) -> Array:
    """Ascending flat positions, int64[min(numel, 2048)]; SplitMix64 (Steele, Lea and Flood, 2014) of the number of
    elements and of the stretch says which."""
    if numel <= SAMPLES:
        return np.arange(numel, dtype=np.int64)
    bounds = np.array([number * numel // SAMPLES for number in range(SAMPLES + 1)], dtype=np.int64)
    with np.errstate(over="ignore"):
        state = (np.uint64(numel) << np.uint64(12)) + np.arange(1, SAMPLES + 1, dtype=np.uint64)
        state = state * np.uint64(0x9E3779B97F4A7C15)
        state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        state = state ^ (state >> np.uint64(31))
    places = bounds[:-1] + (state % np.diff(bounds).astype(np.uint64)).astype(np.int64)
    places.flags.writeable = False
    return np.asarray(places)


def describe_power(numel: int) -> str:
    """What a sample of so many elements can see, in words."""
    count = min(numel, SAMPLES)
    share = 1 - math.exp(math.log(1 - CERTAINTY) / max(count, 1))
    return (
        f"sampled: {count:,} of {numel:,} elements, which show a fault in {100 * share:.2g} % of them or more with "
        f"{100 * CERTAINTY:g} %"
    )
