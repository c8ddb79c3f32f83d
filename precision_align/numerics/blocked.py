"""The difference kernel that is always there: NumPy on blocks, in buffers that are used again."""

from __future__ import annotations

import math
import threading

import numpy as np

from precision_align.core.dtypes import Array
from precision_align.numerics.tallies import Tally

# 32 Ki float64 values are 256 KiB: three such buffers stay in a core's second-level cache, and the 15 us that the
# calls of one block cost besides their work are a tenth of it.
BLOCK = 1 << 15

# OpenBLAS spreads a dot product of more than 10,000 values over threads, at ten times the cost.
DOT = 1 << 13

# A relative error taken in float32 is off by two roundings, below this share, or by an underflow, below this much.
RATIO_SHARE = 2.0**-22
RATIO_FLOOR = 2.0**-148

# Numbers within a factor of 2 of each other have an exact difference (Sterbenz): relative errors up to 1/2, less the
# roundings above.
EXACT_BELOW = 0.49


class _Buffers(threading.local):
    """One set a thread, 1.1 MB. ``ones``: a dot product with it sums twice as fast as ``sum``."""

    def __init__(self) -> None:
        self.actual, self.expected, self.error = (np.empty(BLOCK, np.float64) for _ in range(3))
        self.narrow, self.ratio = (np.empty(BLOCK, np.float32) for _ in range(2))
        self.mask = np.empty(BLOCK, np.bool_)
        self.ones = np.ones(DOT, np.float64)


_BUFFERS = _Buffers()


class BlockedKernel:
    """Takes every NumPy number type; see :class:`~precision_align.numerics.kernels.Kernel`."""

    name = "numpy"
    threaded = False
    forms = frozenset({"float64", "float32", "float16", "bool", "int8", "uint8", "int16", "uint16", "int32", "uint32"})

    def add(self, tally: Tally, left: Array, right: Array, form: str) -> None:
        """Tally 1-D arrays of numbers of one length."""
        add_arrays(tally, left, right)


def add_arrays(tally: Tally, left: Array, right: Array, start: int = 0, unit: float = 1.0) -> None:
    """Tally 1-D arrays of any number types that begin at flat position ``start``, all values divided by ``unit``."""
    add = _add_real
    if "c" in (left.dtype.kind, right.dtype.kind):
        add = _add_complex
    elif _are_long(left, right):
        add = _add_long
    elif left.dtype == right.dtype == np.float32:
        add = _add_narrow
    with np.errstate(all="ignore"):
        for place in range(0, left.size, BLOCK):
            add(tally, left[place : place + BLOCK], right[place : place + BLOCK], start + place, unit)


def _are_long(left: Array, right: Array) -> bool:
    """Whether both are integers and one has 64 bits: beyond 2^53 they are no float64."""
    return left.dtype.kind in "iu" and right.dtype.kind in "iu" and max(left.itemsize, right.itemsize) > 4


def _dot(x: Array, y: Array) -> float:
    """The sum of x * y, float64, in pieces that stay on this thread."""
    whole = x.size // DOT * DOT
    if not whole:
        return float(x.dot(y))
    parts = np.matmul(x[:whole].reshape(-1, 1, DOT), y[:whole].reshape(-1, DOT, 1))
    return float(sum(parts.reshape(-1).tolist())) + float(x[whole:].dot(y[whole:]))


def _sum(x: Array) -> float:
    whole = x.size // DOT * DOT
    rest = float(x[whole:].dot(_BUFFERS.ones[: x.size - whole]))
    parts = np.matmul(x[:whole].reshape(-1, 1, DOT), _BUFFERS.ones)
    return float(sum(parts.reshape(-1).tolist())) + rest


def _low_high(values: Array) -> tuple[float, float]:
    """The least and the greatest; NaN where one is among them. Their positions are found faster than they are."""
    return float(values[values.argmin()]), float(values[values.argmax()])


def _add_narrow(tally: Tally, left: Array, right: Array, start: int, unit: float) -> None:
    """float32: as long as the differences are exact in it, half the bytes go through each step."""
    size = left.size
    difference = np.subtract(left, right, out=_BUFFERS.narrow[:size])
    ratio = _largest_ratio(difference, right)
    if not ratio < EXACT_BELOW or unit != 1:  # also where it is NaN
        _add_real(tally, left, right, start, unit)
        return
    b, error = _BUFFERS.expected[:size], _BUFFERS.error[:size]
    b[...] = right
    expected = _add_range(tally, right, b)
    unequal = int(np.count_nonzero(np.not_equal(left, right, out=_BUFFERS.mask[:size])))
    if not unequal:
        tally.actual += expected
        tally.cross += expected
        return
    error[...] = difference
    change = _dot(b, error)
    tally.cross += expected + change
    tally.actual += expected + 2 * change + _add_errors(tally, error, unequal)  # |b + e|^2, |e| being below |b| / 2
    _add_sizes(tally, np.abs(error, out=error), start, None)
    if ratio * (1 + RATIO_SHARE) + RATIO_FLOOR > tally.max_rel:
        _add_ratios(tally, error, np.abs(b, out=b))


def _largest_ratio(difference: Array, right: Array) -> float:
    """The largest |difference| / |right| in float32, at most |difference| where right is 0; NaN where a NaN is met."""
    ratio = np.divide(difference, right, out=_BUFFERS.ratio[: right.size])
    low, high = _low_high(ratio)
    if math.isfinite(low) and math.isfinite(high):
        return max(high, -low)
    # Ones for zeros, by adding the mask: much faster than to write where it is set.
    zero = np.equal(right, 0, out=_BUFFERS.mask[: right.size])
    ratio = np.divide(difference, np.add(right, zero, out=ratio), out=ratio)
    low, high = _low_high(ratio)
    return max(high, -low)


def _add_range(tally: Tally, values: Array, b: Array) -> float:
    """Count, range and square of expected; the latter is returned. ``values``: the same in a type of fewer bytes."""
    low, high = _low_high(values)
    expected = _dot(b, b)
    tally.count += b.size
    tally.low, tally.high = min(tally.low, low), max(tally.high, high)
    tally.expected += expected
    return expected


def _add_errors(tally: Tally, error: Array, unequal: int) -> float:
    """Sums of e; that of its square is returned."""
    square = _dot(error, error)
    tally.unequal += unequal
    tally.square += square
    tally.signed_sum += _sum(error)
    return square


def _add_products(tally: Tally, a: Array, b: Array) -> None:
    tally.actual += _dot(a, a)
    tally.cross += _dot(a, b)


def _add_sizes(tally: Tally, size: Array, start: int, places: Array | None) -> None:
    """The sum and the largest of |error|; ``places``: positions in the block, where not all of it."""
    tally.absolute += _sum(size)
    place = int(size.argmax())
    if size[place] > tally.max_abs:
        tally.max_abs, tally.worst = float(size[place]), start + (place if places is None else int(places[place]))


def _add_ratios(tally: Tally, size: Array, base: Array) -> None:
    """The largest of |error| / |expected|; overwrites the former."""
    ratio = np.divide(size, base, out=size)
    largest = float(np.fmax.reduce(ratio))  # it passes over 0 / 0
    if not math.isfinite(largest):
        ratio[base == 0] = 0
        largest = float(ratio.max())
    tally.max_rel = max(tally.max_rel, largest)


def _add_real(tally: Tally, left: Array, right: Array, start: int, unit: float) -> None:
    size = left.size
    a, b, error = _BUFFERS.actual[:size], _BUFFERS.expected[:size], _BUFFERS.error[:size]
    a[...], b[...] = left, right
    if unit != 1:
        a /= unit
        b /= unit
    np.subtract(a, b, out=error)
    places = None
    if not math.isfinite(_sum(error)):  # a NaN, an Inf, or an overflow
        places = _find_finite(tally, a, b)
        if places is not None:
            a, b = a[places], b[places]
            error = a - b
    if a.size:
        _add_range(tally, b, b)
        _add_products(tally, a, b)
        _add_errors(tally, error, int(np.count_nonzero(a != b)))
        size_of = np.abs(error, out=error)
        _add_sizes(tally, size_of, start, places)
        _add_ratios(tally, size_of, np.abs(b, out=b))


def _find_finite(tally: Tally, a: Array, b: Array) -> Array | None:
    """Count what is not finite; the positions of the rest, or None where that is all of them."""
    finite = np.isfinite(a) & np.isfinite(b)
    if finite.all():
        return None
    nan_a, nan_b = np.isnan(a), np.isnan(b)
    differing = int(np.count_nonzero(~finite & (a != b) & ~(nan_a & nan_b)))
    tally.nonfinite += differing
    tally.unequal += differing
    tally.nan_actual += int(np.count_nonzero(nan_a))
    tally.nan_expected += int(np.count_nonzero(nan_b))
    tally.inf_actual += int(np.count_nonzero(np.isinf(a) & ~nan_a))
    tally.inf_expected += int(np.count_nonzero(np.isinf(b) & ~nan_b))
    return np.flatnonzero(finite)


def _add_long(tally: Tally, left: Array, right: Array, start: int, unit: float) -> None:
    """Integers, some of 64 bits: the differences are taken as integers, exactly."""
    above = left > right
    words, other = left.astype(np.uint64), right.astype(np.uint64)
    size = np.where(above, words - other, other - words).astype(np.float64)
    a, b = left.astype(np.float64), right.astype(np.float64)
    _add_range(tally, b, b)
    _add_products(tally, a, b)
    _add_errors(tally, np.where(above, size, -size), int(np.count_nonzero(left != right)))
    _add_sizes(tally, size, start, None)
    _add_ratios(tally, size, np.abs(b))


def _add_complex(tally: Tally, left: Array, right: Array, start: int, unit: float) -> None:
    a, b = left.astype(np.complex128) / unit, right.astype(np.complex128) / unit
    places = None
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        places = _find_finite(tally, a, b)
        assert places is not None
        a, b = a[places], b[places]
    if not a.size:
        return
    error = a - b
    size, base, modulus = np.abs(error), np.abs(b), np.abs(a)
    _add_range(tally, base, base)
    tally.actual += _dot(modulus, modulus)
    tally.unequal += int(np.count_nonzero(a != b))
    tally.square += _dot(size, size)
    tally.cross += float(np.vdot(b, a).real)
    tally.signed_sum += float(error.real.sum())
    _add_sizes(tally, size, start, places)
    _add_ratios(tally, size, base)
