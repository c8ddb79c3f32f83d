"""How the differences of two tensors spread: in units in the last place, and by quantiles, both from histograms."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from precision_align.core.dtypes import Array, Dtype
from precision_align.numerics.compiled import CompiledKernel
from precision_align.numerics.kernels import Kernel, choose_kernel
from precision_align.numerics.pairs import SMALL, SPAN, Flat, Release, cut, make_plan

# Distances by their number of binary digits: 0, 1, 2-3, 4-7, ..., 2^31 and more.
ULP_BUCKETS = 33
# Elements a piece where NumPy does the work, in half a dozen float64 arrays.
_STEP = 1 << 15

# |difference| by the upper 11 bits of its float32 magnitude: 8 bins an octave, so a quantile is within 6.25 %.
BINS = 2048

QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p999": 0.999}

# The types with a unit in the last place, and the signed integer of their width.
_ULP_TYPES: dict[str, Any] = {"float32": np.int32, "bfloat16": np.int16, "float16": np.int16, "float64": np.int64}
_NARROW = frozenset({"float32", "bfloat16", "float16"})


@dataclass(frozen=True)
class Spread:
    """Two histograms over the values finite on both sides.

    ``ulps``: 33 counts by the number of binary digits of the distance in units in the last place (0 and -0 are the
    same), the last one open; empty where the two dtypes differ or have no such unit. ``bins``: 2048 counts by the upper
    11 bits of |difference| as float32.
    """

    ulps: tuple[int, ...]
    bins: tuple[int, ...]

    def quantile(self, share: float) -> float:
        """The |difference| that this share of the values stays below, within 6.25 %; 0 where there is none."""
        bin_ = _find_bucket(self._bins_up_to, share)
        low, high = (float(np.uint32(edge << 20).view(np.float32)) for edge in (bin_, bin_ + 1))
        return (low + high) / 2 if bin_ and np.isfinite(high) else 0.0 if not bin_ else low

    def ulp_quantile(self, share: float) -> float:
        """The largest distance in the bucket that this share of the values stays within."""
        return float(2 ** _find_bucket(self._ulps_up_to, share) - 1)

    @cached_property
    def _bins_up_to(self) -> Array:
        return np.cumsum(self.bins)

    @cached_property
    def _ulps_up_to(self) -> Array:
        return np.cumsum(self.ulps)

    def to_dict(self) -> dict[str, float]:
        """The usual quantiles by name."""
        found = {name: self.quantile(share) for name, share in QUANTILES.items()}
        if self.ulps:
            found.update({f"ulp_{name}": self.ulp_quantile(share) for name, share in QUANTILES.items()})
            found["ulp_max"] = self.ulp_quantile(1.0)
        return found


def _find_bucket(running: Array, share: float) -> int:
    if not len(running) or not running[-1]:
        return 0
    return int(running.searchsorted(max(share * running[-1], 0.5)))


def spread_words(
    actual: Array,
    expected: Array,
    dtype: Dtype,
    expected_dtype: Dtype | None = None,
    *,
    release: Release | None = None,
    kernel: Kernel | None = None,
) -> Spread:
    """The spread of two tensors of one shape given as raw words; extra memory: under 4 MB.

    Several times the work of :func:`~precision_align.numerics.metrics.measure_words`: for tensors that differ. Raises
    ValueError on other shapes.
    """
    if actual.shape != expected.shape:
        raise ValueError(f"shapes differ: {actual.shape} and {expected.shape}")
    expected_dtype = expected_dtype or dtype
    left, right = Flat(actual), Flat(expected)
    ulps, bins = np.zeros(ULP_BUCKETS, np.int64), np.zeros(BINS, np.int64)
    exact = dtype == expected_dtype and dtype.name in _ULP_TYPES
    kernel = kernel or choose_kernel()
    compiled = exact and isinstance(kernel, CompiledKernel)
    step = _STEP if not compiled else SPAN if left.plain and right.plain else SMALL
    for start, stop in cut(actual.size, step):
        pair = left.piece(start, stop), right.piece(start, stop)
        if compiled and isinstance(kernel, CompiledKernel):
            kernel.spread(*pair, dtype.name, ulps, bins)
        else:
            _fill(*pair, (dtype, expected_dtype), ulps if exact else None, bins)
        if release is not None:
            release(start, stop)
    found = Spread(tuple(ulps.tolist()) if exact else (), tuple(bins.tolist()))
    # at hand as arrays: made of the tuples they take longer than the pass over a small tensor
    found.__dict__.update(_bins_up_to=bins.cumsum(), _ulps_up_to=ulps.cumsum())
    return found


def _fill(left: Array, right: Array, dtypes: tuple[Dtype, Dtype], ulps: Array | None, bins: Array) -> None:
    """The histograms of one piece with NumPy alone."""
    plan = make_plan(*dtypes, frozenset())
    a = plan.actual(left) if plan.actual else left
    b = plan.expected(right) if plan.expected else right
    kind: Any = np.complex128 if "c" in (a.dtype.kind, b.dtype.kind) else np.float64
    if dtypes[0] == dtypes[1] and dtypes[0].name in _NARROW:
        kind = np.float32  # the same rounded difference, at half the cost; the compiled kernel does so too
    with np.errstate(all="ignore"):
        finite = np.isfinite(a) & np.isfinite(b)
        far = np.abs(a[finite].astype(kind) - b[finite].astype(kind)).astype(np.float32)
    bins += np.bincount(far.view(np.uint32) >> 20, minlength=BINS)
    if ulps is not None:
        _count_ulps(left[finite], right[finite], dtypes[0].name, ulps)


def _count_ulps(left: Array, right: Array, name: str, ulps: Array) -> None:
    """Distances of finite words of one type, counted by their binary digits."""
    word = _ULP_TYPES[name]
    top = np.iinfo(word).max
    x, y = left.view(word), right.view(word)
    size_x, size_y = (x & top).astype(np.uint64), (y & top).astype(np.uint64)
    apart = np.maximum(size_x, size_y) - np.minimum(size_x, size_y)
    far = np.where((x ^ y) < 0, size_x + size_y, apart)
    digits = np.minimum(np.frexp(far.astype(np.float64))[1], ULP_BUCKETS - 1)
    ulps += np.bincount(digits, minlength=ULP_BUCKETS)
