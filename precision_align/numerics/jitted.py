"""The difference kernel for machines with numba and no compiler. Imported only where numba is there.

Reductions become SIMD code only because maxima are of integers (the bits of non-negative floats order like the floats)
and because sums, and nothing else, may be reassociated. Pieces are sliced first and walked from 0: for a running index
numba would check at each access whether it is negative.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from precision_align.core.dtypes import Array
from precision_align.numerics.blocked import RATIO_FLOOR, RATIO_SHARE
from precision_align.numerics.tallies import COUNTS, NUMBERS, SUMS, Tally

BLOCK = 4096  # values: two blocks of them in a core's first-level cache, where a second look costs little
_NUM_COUNTS = len(COUNTS)
_NUM_NUMBERS = len(NUMBERS) + len(SUMS)


def _can_cache() -> bool:
    """Whether numba finds a folder for its cache; without one it would raise at the definition."""
    try:
        numba.njit(cache=True)(_can_cache)
    except RuntimeError:
        return False
    return True


_compile: Any = numba.njit(nogil=True, error_model="numpy", fastmath={"reassoc", "contract", "nsz"}, cache=_can_cache())


@_compile  # type: ignore[untyped-decorator, unused-ignore]
def _add_masked(a: Any, b: Any, ia: Any, ib: Any, mask: Any, infinity: Any, counts: Any, numbers: Any) -> float:
    """Tally a block that has a NaN or an Inf; its largest |error| is returned."""
    largest = 0.0
    for i in range(a.size):
        size_x, size_y = ia[i] & mask, ib[i] & mask
        if size_x >= infinity or size_y >= infinity:
            nan_x, nan_y = size_x > infinity, size_y > infinity
            differs = ia[i] != ib[i] and not (nan_x and nan_y)
            counts[1] += differs
            counts[2] += differs
            counts[3] += nan_x
            counts[4] += nan_y
            counts[5] += size_x == infinity
            counts[6] += size_y == infinity
            continue
        x, y = np.float64(a[i]), np.float64(b[i])
        error = x - y
        largest = max(largest, abs(error))
        counts[0] += 1
        counts[1] += x != y
        numbers[2], numbers[3] = min(numbers[2], y), max(numbers[3], y)
        numbers[4] += abs(error)
        numbers[5] += error * error
        numbers[6] += error
        numbers[7] += x * x
        numbers[8] += y * y
        numbers[9] += x * y
    return largest


@_compile  # type: ignore[untyped-decorator, unused-ignore]
def _divide(a: Any, b: Any, ia: Any, ib: Any, mask: Any, infinity: Any) -> float:
    """The largest |error| / |expected| of a block in float64."""
    largest, none = np.int64(0), np.int64(0)
    for i in range(a.size):
        x, y = np.float64(a[i]), np.float64(b[i])
        sound = ((ia[i] & mask) < infinity) & ((ib[i] & mask) < infinity) & (y != 0)
        ratio = np.float64(abs((x - y) / y)).view(np.int64)
        largest = max(largest, ratio if sound else none)
    return float(np.int64(largest).view(np.float64))


@_compile  # type: ignore[untyped-decorator, unused-ignore]
def _find(left: Any, right: Any, start: int, wanted: float) -> int:
    """The first place from ``start`` on where |error| is ``wanted``."""
    while abs(np.float64(left[start]) - np.float64(right[start])) != wanted:
        start += 1
    return start


def _build(real: Any, word: Any, top: int, share: float, floor: float) -> Any:
    """Compile the kernel of one floating type, for it and the integer of its width; ``top``: that one's sign bit.

    ``share``, ``floor``: how far a relative error in that type may be off.
    """
    shift, mask = word(top), word((1 << top) - 1)
    infinity = word(np.array(np.inf, real).view(word))
    zero, lowest = word(0), word(~int(infinity))

    def tally(left: Any, right: Any, left_words: Any, right_words: Any, counts: Any, numbers: Any) -> None:
        worst = -1
        for start in range(0, left.size, BLOCK):
            stop = min(start + BLOCK, left.size)
            a, b, ia, ib = left[start:stop], right[start:stop], left_words[start:stop], right_words[start:stop]
            absolute = square = signed_sum = actual = expected = cross = 0.0
            max_abs = np.int64(0)
            low, high, peak, ratio, unequal = infinity, lowest, zero, zero, zero
            for i in range(a.size):
                x, y = a[i], b[i]
                dx, dy = np.float64(x), np.float64(y)
                error = dx - dy
                distance = abs(error)
                max_abs = max(max_abs, np.float64(distance).view(np.int64))
                absolute += distance
                square += error * error
                signed_sum += error
                actual += dx * dx
                expected += dy * dy
                cross += dx * dy
                order = ib[i] ^ ((ib[i] >> shift) & mask)
                low, high, peak = min(low, order), max(high, order), max(peak, ia[i] & mask)
                unequal += word(x != y)
                relative = real(abs((x - y) / y)).view(word)
                ratio = max(ratio, relative if (ib[i] & mask) != zero else zero)
            above: Any
            if peak < infinity and high < infinity and low > lowest:
                largest = float(np.int64(max_abs).view(np.float64))
                above = np.float64(word(ratio).view(real)) * (1 + share) + floor
                low ^= (low >> shift) & mask
                high ^= (high >> shift) & mask
                counts[0] += a.size
                counts[1] += unequal
                numbers[2] = min(numbers[2], np.float64(word(low).view(real)))
                numbers[3] = max(numbers[3], np.float64(word(high).view(real)))
                numbers[4] += absolute
                numbers[5] += square
                numbers[6] += signed_sum
                numbers[7] += actual
                numbers[8] += expected
                numbers[9] += cross
            else:
                largest, above = _add_masked(a, b, ia, ib, mask, infinity, counts, numbers), np.inf
            if largest > numbers[0]:
                numbers[0] = largest
                worst = start
            if largest > 0 and above > numbers[1]:
                numbers[1] = max(numbers[1], _divide(a, b, ia, ib, mask, infinity))
        if worst >= 0:
            counts[7] = _find(left, right, worst, numbers[0])

    return _compile(tally)


class JittedKernel:
    """Takes float32 and float64; see :class:`~precision_align.numerics.kernels.Kernel`."""

    name = "numba"
    threaded = True
    forms = frozenset({"float32", "float64"})

    def __init__(self) -> None:
        self._tally = {
            "float32": (_build(np.float32, np.int32, 31, RATIO_SHARE, RATIO_FLOOR), np.int32),
            "float64": (_build(np.float64, np.int64, 63, 0.0, 0.0), np.int64),
        }

    def add(self, tally: Tally, left: Array, right: Array, form: str) -> None:
        """Tally 1-D arrays of words of one length, into an empty tally."""
        count, word = self._tally[form]
        memory = memoryview(tally).cast("B")
        counts = np.frombuffer(memory, np.int64, _NUM_COUNTS)
        numbers = np.frombuffer(memory, np.float64, _NUM_NUMBERS, counts.nbytes)
        count(left, right, left.view(word), right.view(word), counts, numbers)
