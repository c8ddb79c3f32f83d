"""What one pass over a pair of tensors counts and sums: the one result of every difference kernel."""

from __future__ import annotations

import ctypes
import math

# The number that difference.c gives as its VERSION; raised with every change of the fields below.
VERSION = 1

COUNTS = ("count", "unequal", "nonfinite", "nan_actual", "nan_expected", "inf_actual", "inf_expected", "worst")
NUMBERS = ("max_abs", "max_rel", "low", "high")
SUMS = ("absolute", "square", "signed_sum", "actual", "expected", "cross")


class Tally(ctypes.Structure):
    """Counts, extremes and float64 sums of actual and expected values, and of e = actual - expected.

    ``count``: values finite on both sides, which alone enter extremes and sums; ``unequal``: values that differ;
    ``nonfinite``: those of them whose NaN or Inf state differs; ``nan_actual`` to ``inf_expected``: NaN and Inf on each
    side; ``worst``: flat position of the first e of size ``max_abs``; ``max_rel``: largest |e| / |expected| where
    expected is not 0; ``low``, ``high``: range of expected (of its modulus if complex; infinities where there is
    none). Sums of: ``absolute`` |e|, ``square`` |e|^2, ``signed_sum`` Re e,
    ``actual`` and ``expected`` the squares, ``cross`` Re(conj(expected) actual).
    """

    _fields_ = (
        *((name, ctypes.c_int64) for name in COUNTS),
        *((name, ctypes.c_double) for name in NUMBERS + SUMS),
    )
    count: int
    unequal: int
    nonfinite: int
    nan_actual: int
    nan_expected: int
    inf_actual: int
    inf_expected: int
    worst: int
    max_abs: float
    max_rel: float
    low: float
    high: float
    absolute: float
    square: float
    signed_sum: float
    actual: float
    expected: float
    cross: float

    @classmethod
    def empty(cls) -> Tally:
        """Of no values."""
        return cls(low=math.inf, high=-math.inf)

    def extend(self, other: Tally, start: int) -> None:
        """Take in the tally of the values from flat position ``start`` on."""
        if other.max_abs > self.max_abs:
            self.max_abs, self.worst = other.max_abs, start + other.worst
        self.max_rel = max(self.max_rel, other.max_rel)
        self.low, self.high = min(self.low, other.low), max(self.high, other.high)
        for name in COUNTS[:-1] + SUMS:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    @property
    def largest(self) -> float:
        """The largest |expected|; 0 where there is none."""
        return max(-self.low, self.high, 0.0)

    @property
    def peak(self) -> float:
        """The largest magnitude on either side, within a factor of 2."""
        return max(self.largest, self.max_abs)
