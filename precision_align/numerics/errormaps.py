"""Where the error of a tensor lies and how it spreads, in at most 64 bins a direction: see :class:`ErrorMap`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from precision_align.core.dtypes import Array
from precision_align.core.results import ErrorMap

BINS = 64  # a direction: what a figure half a page wide can show, and 30 KB a tensor in report.json
# Elements taken at a time, in half a dozen float64 arrays.
_STEP = 1 << 20
# A last dimension this short, behind two long ones, holds the channels of a picture: grey, RGB or RGBA.
_CHANNELS = 4


def map_errors(key: str, against: str, actual: Array, expected: Array) -> ErrorMap | None:
    """The map of two arrays of numbers; None where their shapes differ or they have no element.

    All arithmetic is float64. Infinities of one sign and NaNs on both sides are equal.
    """
    if actual.shape != expected.shape or not actual.size:
        return None
    dimensions = [dimension for dimension, size in enumerate(actual.shape) if size > 1]
    shape = tuple(actual.shape[dimension] for dimension in dimensions) or (1,)
    sides = actual.reshape(shape), expected.reshape(shape)
    axes = _choose_axes(shape)
    places = _Places(shape, axes)
    extent = _Extent()
    for window, ours, theirs, error in _walk(*sides, axes):
        places.see(window, error)
        extent.see(ours, theirs, error)
    spread = _Spread(extent)
    for _, ours, theirs, error in _walk(*sides, axes):
        spread.see(ours, theirs, error)
    return ErrorMap(
        key=key,
        against=against,
        shape=tuple(map(int, actual.shape)),
        axes=tuple(dimensions[axis] for axis in axes),
        cells=tuple(map(_round, places.cells)),
        profiles=tuple(zip(dimensions, map(_round, places.list_profiles()))),
        bounds=(extent.low, extent.high) if extent.low <= extent.high else (0.0, 0.0),
        expected=tuple(spread.expected.tolist()),
        actual=tuple(spread.actual.tolist()),
        decades=spread.decades,
        errors=tuple(spread.errors.tolist()),
        equal=extent.equal,
        nonfinite=extent.nonfinite,
    )


def _choose_axes(shape: Sequence[int]) -> tuple[int, ...]:
    """The last two dimensions (token x channel, height x width), but height x width where channels come last."""
    if len(shape) < 2:
        return ()
    is_picture = len(shape) > 2 and shape[-1] <= _CHANNELS < min(shape[-3:-1])
    last = len(shape) - 1 - is_picture
    return last - 1, last


def _walk(
    actual: Array, expected: Array, axes: Sequence[int]
) -> Iterator[tuple[tuple[slice, slice], Array, Array, Array]]:
    """(window, actual, expected, |actual - expected|) of a part of the first two dimensions at a time.

    Columns of cells are never cut.
    """
    size, inner = math.prod(actual.shape[1:]), math.prod(actual.shape[2:])
    is_cut = actual.ndim > 2 and axes[1] != 1 and size > _STEP
    across = max(1, _STEP // inner) if is_cut else actual.shape[1] if actual.ndim > 1 else 1
    for window in _cut(actual.shape, max(1, _STEP // size), across):
        place = window[: actual.ndim]
        ours, theirs = (_to_float64(side[place]) for side in (actual, expected))
        with np.errstate(invalid="ignore", over="ignore"):
            error = np.abs(ours - theirs)
        # an infinity less itself is NaN, and so is NaN less NaN; what overflows is as bad as what is not finite
        error[np.isnan(error)] = np.inf
        error[(ours == theirs) | (np.isnan(ours) & np.isnan(theirs))] = 0.0
        yield window, _take_modulus(ours), _take_modulus(theirs), error


def _cut(shape: Sequence[int], down: int, across: int) -> Iterator[tuple[slice, slice]]:
    for top in range(0, shape[0], down):
        for left in range(0, shape[1] if len(shape) > 1 else 1, across):
            yield slice(top, top + down), slice(left, left + across)


def _to_float64(values: Array) -> Array:
    return values.astype(np.complex128 if values.dtype.kind == "c" else np.float64)


def _take_modulus(values: Array) -> Array:
    return np.abs(values) if values.dtype.kind == "c" else values


def _fold(values: Array, axis: int) -> Array:
    """The largest of each of at most 64 runs along an axis: run i begins at i * size // 64."""
    size = values.shape[axis]
    if size <= BINS:
        return values
    starts = np.arange(BINS) * size // BINS
    return np.asarray(np.maximum.reduceat(values, starts, axis=axis))


class _Places:
    """The largest error along each dimension and in each cell."""

    def __init__(self, shape: tuple[int, ...], axes: tuple[int, ...]) -> None:
        self._axes = axes
        self._profiles = [np.zeros(size) for size in shape]
        self._cells = np.zeros((shape[axes[0]], min(shape[axes[1]], BINS))) if axes else np.zeros((0, 0))

    def see(self, window: tuple[slice, slice], error: Array) -> None:
        """A part of the first two dimensions."""
        for axis, profile in enumerate(self._profiles):
            part = error.max(axis=tuple(other for other in range(error.ndim) if other != axis))
            target = profile[window[axis]] if axis < len(window) else profile
            np.maximum(target, part, out=target)
        if self._axes:
            others = tuple(axis for axis in range(error.ndim) if axis not in self._axes)
            part = _fold(error.max(axis=others) if others else error, 1)
            rows = self._axes[0]
            target = self._cells[window[rows]] if rows < len(window) else self._cells
            np.maximum(target, part, out=target)

    @property
    def cells(self) -> Array:
        return _fold(self._cells, 0)

    def list_profiles(self) -> list[Array]:
        """One a dimension."""
        return [_fold(profile, 0) for profile in self._profiles]


class _Extent:
    """How far values and errors reach: what the bins of the histograms are laid out by."""

    def __init__(self) -> None:
        self.low, self.high = math.inf, -math.inf
        self.least, self.most = math.inf, 0.0
        self.equal = self.nonfinite = 0

    def see(self, actual: Array, expected: Array, error: Array) -> None:
        """Some elements."""
        for side in (actual, expected):
            finite = side[np.isfinite(side)]
            if finite.size:
                self.low, self.high = min(self.low, float(finite.min())), max(self.high, float(finite.max()))
        some = error[(error > 0) & np.isfinite(error)]
        if some.size:
            self.least, self.most = min(self.least, float(some.min())), max(self.most, float(some.max()))
        self.equal += int(np.count_nonzero(error == 0))
        self.nonfinite += int(np.count_nonzero(np.isinf(error)))


class _Spread:
    """The counts of both sides' values, and of the error by its decades."""

    def __init__(self, extent: _Extent) -> None:
        self._extent = extent
        bins = BINS if extent.low < extent.high else int(extent.low == extent.high)
        self.expected, self.actual = (np.zeros(bins, dtype=np.int64) for _ in range(2))
        self.decades = _find_decades(extent)
        decades = self.decades[1] - self.decades[0]
        self.errors = np.zeros(decades * (BINS // decades) if decades else 0, dtype=np.int64)

    def see(self, actual: Array, expected: Array, error: Array) -> None:
        """Some elements."""
        for side, counts in ((actual, self.actual), (expected, self.expected)):
            if len(counts):
                self._count(side[np.isfinite(side)], self._extent.low, self._extent.high, counts)
        some = error[(error > 0) & np.isfinite(error)]
        if some.size:
            self._count(np.log10(some), *self.decades, self.errors)

    @staticmethod
    def _count(values: Array, low: float, high: float, counts: Array) -> None:
        if len(counts) == 1:
            counts[0] += values.size
            return
        # halves, because the span of two float64 values may overflow
        share = (values / 2 - low / 2) / (high / 2 - low / 2)
        places = np.clip((share * len(counts)).astype(np.int64), 0, len(counts) - 1)
        counts += np.bincount(places, minlength=len(counts))


def _find_decades(extent: _Extent) -> tuple[int, int]:
    """The whole powers of ten around all errors, at most 64 decades below the largest."""
    if not extent.most:
        return 0, 0
    high = math.floor(math.log10(extent.most)) + 1
    return max(math.floor(math.log10(extent.least)), high - BINS), high


def _round(values: Array) -> tuple[float, ...]:
    """Three digits: colours and bars show no more, and the file stays small."""
    return tuple(float(f"{value:.3g}") for value in values.tolist())
