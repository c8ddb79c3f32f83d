"""Raw differences of two tensors, accumulated in float64. They describe; they do not judge."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from precision_align.core.dtypes import Array, Dtype
from precision_align.numerics.blocked import add_arrays
from precision_align.numerics.kernels import Kernel, choose_kernel
from precision_align.numerics.pairs import SMALL, SPAN, Flat, Plan, Release, cut, is_plain, make_plan, read_array
from precision_align.numerics.tallies import Tally

# Sums of squares of values between its inverse and this neither overflow nor vanish in float64.
SQUARABLE = 1e140

# Threads pay from here on: two of them take 0.1 ms to start, and this many bytes take one of them 0.5 ms.
_THREADED_BYTES = 1 << 24
_MAX_THREADS = 8  # a handful of cores uses up the memory's bandwidth

# Up to this |e|^2 / |b|^2 vectors are near: their angle comes from e. Beyond, a tiny |a| would vanish in |a - b|.
_CLOSE = 0.25


class Difference(NamedTuple):
    """How far ``actual`` is from ``expected``.

    ``max_abs``, ``mean_abs``, ``rmse``: of actual - expected over values finite on both sides; ``max_rel``: largest
    |difference| / |expected| where expected is not zero (infinite if nothing but zeros was expected and something else
    came); ``rel_l2``: norm of the difference over the norm of expected; ``over_max``: max_abs over
    the largest |expected|; ``one_minus_cosine``: from differences, exact for near-equal vectors; ``bias``: mean signed
    difference; ``mismatched``: share of values that differ at all; ``nonfinite``: count of values whose NaN or Inf
    state differs; ``worst_index``: flat position of the largest difference; ``low``, ``high``: the range of expected
    (its modulus, if complex), 0 where nothing is finite; ``psnr``: that range over the RMSE in decibels, infinite for
    equal tensors; ``nan_actual`` to ``inf_expected``: how many NaN and Inf each side has.
    """

    max_abs: float
    mean_abs: float
    rmse: float
    max_rel: float
    rel_l2: float
    over_max: float
    one_minus_cosine: float
    bias: float
    mismatched: float
    nonfinite: int
    worst_index: int
    low: float
    high: float
    psnr: float
    nan_actual: int
    nan_expected: int
    inf_actual: int
    inf_expected: int

    def to_dict(self) -> dict[str, float]:
        """All of it by name."""
        return self._asdict()


def measure(actual: Array, expected: Array) -> Difference:
    """Compare two arrays of one shape (any NumPy number type; complex by modulus). Raises ValueError on other shapes.

    Raises TypeError where an array does not hold numbers.
    """
    (left, dtype), (right, expected_dtype) = read_array(np.asarray(actual)), read_array(np.asarray(expected))
    return measure_words(left, right, dtype, expected_dtype)


def measure_words(
    actual: Array,
    expected: Array,
    dtype: Dtype,
    expected_dtype: Dtype | None = None,
    *,
    release: Release | None = None,
    threads: int = 0,
    kernel: Kernel | None = None,
) -> Difference:
    """Compare two tensors of one shape given as raw words. Raises ValueError on other shapes.

    Extra memory: under 4 MB a thread whatever the size. ``release(start, stop)`` is called once for elements that are
    not needed any more (values near the ends of float64's range are read a second time all the same). ``threads``: 0
    for as many as there are cores, at most 8, for large tensors; the result does not depend on it.
    """
    if actual.shape != expected.shape:
        raise ValueError(f"shapes differ: {actual.shape} and {expected.shape}")
    sums, unit = tally_words(actual, expected, dtype, expected_dtype or dtype, release, threads, kernel)
    return _finish(sums, unit, actual.size)


def tally_words(
    actual: Array,
    expected: Array,
    dtype: Dtype,
    expected_dtype: Dtype,
    release: Release | None = None,
    threads: int = 0,
    kernel: Kernel | None = None,
) -> tuple[Tally, float]:
    """The sums behind :func:`measure_words`, and the power of two that their values were divided by."""
    kernel = kernel or choose_kernel()
    plan = make_plan(dtype, expected_dtype, kernel.forms)
    if actual.size <= SPAN and plan.is_direct and is_plain(actual) and is_plain(expected):
        total = Tally.empty()  # the way of most tensors, in the fewest steps
        kernel.add(total, actual.reshape(-1), expected.reshape(-1), plan.form)
        if release is not None:
            release(0, actual.size)
    else:
        pair = _Pair(actual, expected, plan, kernel, release)
        total = _add_up(pair, actual.size, _count_threads(threads, actual.nbytes) if kernel.threaded else 1)
    peak = total.peak
    if 1 / SQUARABLE < peak < SQUARABLE or peak == 0:
        return total, 1.0
    pair = _Pair(actual, expected, plan, kernel, None)
    unit = math.ldexp(1.0, max(-1000, min(1000, math.frexp(min(peak, sys.float_info.max))[1])))
    again = Tally.empty()
    for start, stop in cut(actual.size, SMALL):
        add_arrays(again, *pair.read(start, stop), start, unit)
    return again, unit


class _Pair:
    """Two tensors, the plan for them, and the kernel that follows it."""

    def __init__(self, actual: Array, expected: Array, plan: Plan, kernel: Kernel, release: Release | None) -> None:
        self._actual, self._expected = Flat(actual), Flat(expected)
        self._plan, self._kernel, self._release = plan, kernel, release
        # Few elements at a time where a copy has to be made of them.
        self._step = SPAN if plan.is_direct and self._actual.plain and self._expected.plain else SMALL

    def read(self, start: int, stop: int) -> tuple[Array, Array]:
        """A piece of each side in the plan's form."""
        left, right = self._actual.piece(start, stop), self._expected.piece(start, stop)
        if self._plan.actual is not None:
            left = self._plan.actual(left)
        if self._plan.expected is not None:
            right = self._plan.expected(right)
        return left, right

    def tally(self, bounds: tuple[int, int]) -> Tally:
        """The sums over one span, whose pieces are taken in order."""
        start, stop = bounds
        if stop - start <= self._step:
            span = self._tally_piece(start, stop)
        else:
            span = Tally.empty()
            for first, last in cut(stop - start, self._step):
                span.extend(self._tally_piece(start + first, start + last), first)
        if self._release is not None:
            self._release(start, stop)
        return span

    def _tally_piece(self, start: int, stop: int) -> Tally:
        piece = Tally.empty()
        left, right = self.read(start, stop)
        if self._plan.form:
            self._kernel.add(piece, left, right, self._plan.form)
        else:
            add_arrays(piece, left, right)
        return piece


def _add_up(pair: _Pair, size: int, threads: int) -> Tally:
    """The sums over all spans, joined in their order, so that they do not depend on the number of threads."""
    spans = list(cut(size, SPAN))
    total = Tally.empty()
    if threads > 1:
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(min(threads, len(spans))) as pool:
            found: Iterable[Tally] = pool.map(pair.tally, spans)
            return _join(total, found, spans)
    return _join(total, map(pair.tally, spans), spans)


def _join(total: Tally, found: Iterable[Tally], spans: list[tuple[int, int]]) -> Tally:
    for tally, (start, _) in zip(found, spans):
        total.extend(tally, start)
    return total


def _count_threads(wanted: int, nbytes: int) -> int:
    if wanted:
        return wanted
    if nbytes < _THREADED_BYTES:
        return 1
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, _MAX_THREADS)


def _finish(sums: Tally, unit: float, total: int) -> Difference:
    count, largest, max_abs, square = max(sums.count, 1), sums.largest, sums.max_abs, sums.square
    norm = math.sqrt(sums.expected)
    nothing = 0.0 if square == 0 else 1.0
    rmse = math.sqrt(square / count)
    low, high = (sums.low, sums.high) if sums.count else (0.0, 0.0)
    return Difference(
        max_abs * unit,
        sums.absolute / count * unit,
        rmse * unit,
        sums.max_rel if max_abs == 0 or sums.max_rel > 0 else math.inf,
        math.sqrt(square) / norm if norm > 0 else nothing * math.inf if nothing else 0.0,
        max_abs / largest if largest > 0 else (math.inf if nothing else 0.0),
        _find_angle(sums, norm, nothing),
        sums.signed_sum / count * unit,
        sums.unequal / max(total, 1),
        sums.nonfinite,
        sums.worst,
        low * unit,
        high * unit,
        _find_psnr(high - low, rmse),
        sums.nan_actual,
        sums.nan_expected,
        sums.inf_actual,
        sums.inf_expected,
    )


def _find_angle(sums: Tally, norm: float, nothing: float) -> float:
    """1 - cos; near-equal vectors by |a-b|^2 = (|a|-|b|)^2 + 2|a||b|(1-cos), in which 1 does not cancel."""
    size = math.sqrt(max(sums.actual, 0.0))
    product = size * norm
    if product == 0:
        return nothing
    if sums.square >= _CLOSE * sums.expected:
        return max(0.0, 1 - sums.cross / product)
    return max(0.0, (sums.square - (size - norm) ** 2) / (2 * product))


def _find_psnr(span: float, rmse: float) -> float:
    if rmse == 0:
        return math.inf
    return 20 * math.log10(span / rmse) if span > 0 else -math.inf
