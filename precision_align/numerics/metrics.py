"""Raw differences of two tensors, accumulated in float64. They describe; they do not judge."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

import numpy as np

from precision_align.core.dtypes import Array

BLOCK = 1 << 16  # elements a pass: 0.5 MB of float64 a buffer, in the second-level cache
SQUARABLE = 1e140  # sums of squares of values between its inverse and this neither overflow nor vanish


@dataclass(frozen=True)
class Difference:
    """How far ``actual`` is from ``expected``.

    ``max_abs``, ``mean_abs``, ``rmse``: of actual - expected over values finite on both sides; ``max_rel``: largest
    |difference| / |expected| where expected is not zero (infinite if nothing but zeros was expected and something else
    came); ``rel_l2``: norm of the difference over the norm of expected; ``over_max``: max_abs over
    the largest |expected|; ``one_minus_cosine``: from differences, exact for near-equal vectors; ``bias``: mean signed
    difference; ``mismatched``: share of values that differ at all; ``nonfinite``: count of values whose NaN or Inf
    state differs; ``worst_index``: flat position of the largest difference.
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

    def to_dict(self) -> dict[str, float]:
        return asdict(self)


@dataclass
class _Sums:
    unit: float = 1.0
    count: int = 0
    unequal: int = 0
    nonfinite: int = 0
    max_abs: float = 0.0
    max_rel: float = 0.0
    max_expected: float = 0.0
    worst: int = 0
    absolute: float = 0.0
    square: float = 0.0
    signed: float = 0.0
    expected: float = 0.0
    actual: float = 0.0


def measure(actual: Array, expected: Array) -> Difference:
    """Compare two arrays of one shape (any numeric dtype; complex by modulus). Raises ValueError on other shapes."""
    if actual.shape != expected.shape:
        raise ValueError(f"shapes differ: {actual.shape} and {expected.shape}")
    left, right = np.ravel(actual), np.ravel(expected)
    with np.errstate(all="ignore"):
        sums = _Sums(unit=_find_unit(left, right))
        for start in range(0, left.size, BLOCK):
            _add_block(sums, left[start : start + BLOCK], right[start : start + BLOCK], start)
    return _finish(sums, left.size)


def _find_unit(left: Array, right: Array) -> float:
    """The power of two to divide by, so that squares stay in float64's range: 1 for all but extreme float64."""
    if not any(np.dtype(values.dtype) in (np.float64, np.complex128) for values in (left, right)):
        return 1.0
    peak = 0.0
    for values in (left, right):
        for start in range(0, values.size, BLOCK):
            size = np.abs(values[start : start + BLOCK].astype(np.complex128 if values.dtype.kind == "c" else float))
            peak = max(peak, float(np.max(size, initial=0.0, where=np.isfinite(size))))
    if peak == 0 or 1 / SQUARABLE < peak < SQUARABLE:
        return 1.0
    return math.ldexp(1.0, max(-1000, min(1000, math.frexp(peak)[1])))


def _subtract_integers(left: Array, right: Array) -> Array:
    """left - right as float64, from exact differences: int64 values beyond 2^53 are no float64."""
    a, b = left.astype(np.uint64), right.astype(np.uint64)
    above = left > right
    return np.where(above, a - b, b - a).astype(np.float64) * np.where(above, 1.0, -1.0)


def _add_block(sums: _Sums, left: Array, right: Array, start: int) -> None:
    kind = np.complex128 if "c" in (left.dtype.kind, right.dtype.kind) else np.float64
    a, b = left.astype(kind) / sums.unit, right.astype(kind) / sums.unit
    finite = np.isfinite(a) & np.isfinite(b)
    if not finite.all():
        same = (a == b) | (np.isnan(a) & np.isnan(b))
        sums.nonfinite += int(np.count_nonzero(~finite & ~same))
        sums.unequal += int(np.count_nonzero(~finite & ~same))
        a, b = np.where(finite, a, 0), np.where(finite, b, 0)
    integers = left.dtype.kind in "iu" and right.dtype.kind in "iu"
    error = _subtract_integers(left, right) if integers else a - b
    size, base = np.abs(error), np.abs(b)
    sums.count += int(np.count_nonzero(finite))
    sums.unequal += int(np.count_nonzero(size))
    place = int(np.argmax(size)) if size.size else 0
    if size.size and size[place] > sums.max_abs:
        sums.max_abs, sums.worst = float(size[place]), start + place
    nonzero = base > 0
    if nonzero.any():
        sums.max_rel = max(sums.max_rel, float((size[nonzero] / base[nonzero]).max()))
        sums.max_expected = max(sums.max_expected, float(base.max()))
    sums.absolute += float(size.sum())
    sums.square += float(np.square(size).sum())
    sums.signed += float(error.real.sum())
    sums.expected += float(np.square(base).sum())
    sums.actual += float(np.square(np.abs(a)).sum())


def _finish(sums: _Sums, total: int) -> Difference:
    count = max(sums.count, 1)
    norm = math.sqrt(sums.expected)
    product = math.sqrt(sums.actual) * norm
    # |a-b|^2 = (|a|-|b|)^2 + 2|a||b|(1-cos): no cancellation for nearly equal vectors
    gap = (math.sqrt(sums.actual) - norm) ** 2
    nothing = 0.0 if sums.square == 0 else 1.0
    return Difference(
        max_abs=sums.max_abs * sums.unit,
        mean_abs=sums.absolute / count * sums.unit,
        rmse=math.sqrt(sums.square / count) * sums.unit,
        max_rel=sums.max_rel if sums.max_abs == 0 or sums.max_rel > 0 else math.inf,
        rel_l2=math.sqrt(sums.square) / norm if norm > 0 else nothing * math.inf if nothing else 0.0,
        over_max=sums.max_abs / sums.max_expected if sums.max_expected > 0 else (math.inf if nothing else 0.0),
        one_minus_cosine=max(0.0, (sums.square - gap) / (2 * product)) if product > 0 else nothing,
        bias=sums.signed / count * sums.unit,
        mismatched=sums.unequal / max(total, 1),
        nonfinite=sums.nonfinite,
        worst_index=sums.worst,
    )
