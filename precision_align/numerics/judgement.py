"""The local test: is this output right, given a float64 golden, a same-dtype replay and a condition scale?

Order of the tests: shape, bit equality with the replay, non-finite pattern, element-wise bound, RMS ratio,
signed bias, bias of rows and columns. The strongest finding stands: fail > warn > pass. Sources: the a-priori bounds of
Higham, "Accuracy and Stability of Numerical Algorithms" (2nd ed., ch. 3), for T; the rest as argued in
:mod:`~precision_align.numerics.limits`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from precision_align.core.dtypes import Array, Dtype
from precision_align.core.results import Limit
from precision_align.core.terms import Status
from precision_align.numerics.detectability import measure_detectable
from precision_align.numerics.limits import LIMITS, U32, Limits


@dataclass(frozen=True)
class Judgement:
    """The verdict on one tensor, the reason in words, the numbers behind it, and whose golden it was held against."""

    status: Status
    why: str = ""
    metrics: Mapping[str, float] = field(default_factory=dict)
    limit: Limit | None = None
    evidence: str = "replay"


@dataclass(frozen=True)
class Scale:
    """How much error an operator's arithmetic may make: S (float64, shape of the output) and its coefficient c.

    ``length``: number of summed terms K for products and convolutions, else 0. ``formula``: S comes from the operator's
    formula, not from perturbation. ``decomposable``: a conforming build may round several times to the output's dtype.
    ``split``: it is a sum that may be split into up to 8 low-precision partial results.
    """

    values: Array
    coefficient: float
    length: int = 0
    formula: bool = False
    decomposable: bool = True
    split: bool = False
    origin: str = "random perturbation of the inputs"


def judge(
    actual: Array,
    golden: Array,
    native: Array,
    scale: Scale,
    dtype: Dtype,
    limits: Limits = LIMITS,
    finite_inputs: bool = True,
) -> Judgement:
    """Judge a floating-point output.

    All arrays in float64 (complex: complex128), same shape: ``actual`` the candidate's values, ``golden`` the float64
    replay on the candidate's own inputs, ``native`` the same-dtype replay. ``dtype``: the output's logical dtype.
    ``finite_inputs``: no NaN or Inf went in; where one did, what differs at a non-finite golden proves nothing.
    """
    if actual.shape != golden.shape or actual.shape != native.shape:
        return Judgement(Status.FAIL, f"shape {actual.shape}, the reference computes {golden.shape}")
    if actual.size == 0:
        return Judgement(Status.PASS, "empty")
    if np.array_equal(actual, native, equal_nan=True):
        return Judgement(Status.PASS, "bit-equal to the reference's own arithmetic on these inputs")
    if actual.dtype.kind == "c":
        actual, golden, native = (_as_real(part) for part in (actual, golden, native))
        scale = replace(scale, values=np.repeat(scale.values[..., None], 2, axis=-1))
        found = _judge_real(actual, golden, native, scale, dtype, limits, finite_inputs)
        metrics = {name: value // 2 if name == "worst_index" else value for name, value in found.metrics.items()}
        return replace(found, metrics=metrics)
    return _judge_real(actual, golden, native, scale, dtype, limits, finite_inputs)


def judge_exact(actual: Array, expected: Array) -> Judgement:
    """Judge an operator that only moves, selects, compares or counts: bit equality, NaN equal to NaN, -0 to +0."""
    if actual.shape != expected.shape:
        return Judgement(Status.FAIL, f"shape {actual.shape}, the reference computes {expected.shape}")
    if actual.size == 0:
        return Judgement(Status.PASS, "empty")
    floating = actual.dtype.kind in "fc" and expected.dtype.kind in "fc"
    equal = actual == expected
    if floating:
        equal |= np.isnan(actual) & np.isnan(expected)
    count = int(actual.size - np.count_nonzero(equal))
    if count == 0:
        return Judgement(Status.PASS, "exactly equal")
    metrics = {"mismatched": count / actual.size, "worst_index": float(np.argmin(equal.ravel()))}
    limit = Limit("mismatched", 0.0, "an operator that moves, selects or counts is exact")
    return Judgement(Status.FAIL, f"{count} of {actual.size} values differ where none may", metrics, limit)


def _as_real(values: Array) -> Array:
    return np.ascontiguousarray(values, dtype=np.complex128).view(np.float64).reshape(*values.shape, 2)


@dataclass(frozen=True)
class _Work:
    """Finite elements only, flat, plus what all tests need; ``places``: their positions in the whole tensor."""

    actual: Array
    golden: Array
    native: Array
    scale: Array
    bound: Array
    places: Array
    roundoff: float

    @property
    def low(self) -> bool:
        """Half precision and below: the rounding of the output hides what is smaller, so means must be tested."""
        return self.roundoff >= 2.0**-11

    def select(self, mask: Array) -> _Work:
        """Some of the elements."""
        parts = (self.actual, self.golden, self.native, self.scale, self.bound, self.places)
        actual, golden, native, scale, bound, places = (part[mask] for part in parts)
        return _Work(actual, golden, native, scale, bound, places, self.roundoff)


def _judge_real(
    actual: Array,
    golden: Array,
    native: Array,
    scale: Scale,
    dtype: Dtype,
    limits: Limits,
    finite_inputs: bool,
) -> Judgement:
    with np.errstate(all="ignore"):
        size = np.nan_to_num(np.abs(scale.values), nan=0.0, posinf=0.0)
        finite_golden = np.nan_to_num(golden, nan=0.0, posinf=0.0, neginf=0.0)
        bound = dtype.roundoff * np.abs(finite_golden) + scale.coefficient * _inner_roundoff(dtype) * size + dtype.eta
        pattern = _judge_nonfinite(actual, golden, native, bound, dtype, finite_inputs)
        if pattern is not None and pattern.status == Status.FAIL:
            return pattern
        ceiling = dtype.maximum * (1 + dtype.roundoff)
        keep = np.isfinite(golden) & np.isfinite(actual) & (np.abs(golden) <= ceiling)
        if not keep.any():
            return pattern or Judgement(Status.PASS, "every value is non-finite, in the reference's pattern")
        kept_native = np.where(np.isfinite(native), native, golden)
        places = np.flatnonzero(keep)
        work = _Work(actual[keep], golden[keep], kept_native[keep], size[keep], bound[keep], places, dtype.roundoff)
        groups = _find_group_bias(actual, golden, native, bound, limits) if work.low and keep.all() else 0.0
        found = _judge_finite(work, scale, dtype, limits, groups)
        return found if pattern is None or found.status == Status.FAIL else pattern


def _inner_roundoff(dtype: Dtype) -> float:
    return dtype.roundoff if dtype.name in ("float64", "complex128") else U32


def _judge_nonfinite(
    actual: Array, golden: Array, native: Array, bound: Array, dtype: Dtype, finite_inputs: bool
) -> Judgement | None:
    """What a correctly rounded result would be, with slack around the overflow threshold."""
    ceiling = dtype.maximum * (1 + dtype.roundoff)
    expected = np.where(np.abs(golden) - bound > ceiling, np.sign(golden) * np.inf, golden)
    straddles = (np.abs(golden) + bound > ceiling) & (np.abs(golden) - bound <= ceiling)
    concerned = ~np.isfinite(expected) | ~np.isfinite(actual)
    if not concerned.any():
        return None
    near_top = np.isinf(actual) | (np.abs(actual) >= dtype.maximum * (1 - 4 * dtype.roundoff))
    same = (np.isnan(expected) & np.isnan(actual)) | (expected == actual) | (straddles & near_top)
    # an intermediate overflow that the reference's own dtype has too is not the candidate's fault
    same |= (np.isnan(native) & np.isnan(actual)) | (np.isinf(native) & (native == actual))
    bad = concerned & ~same
    unclear = bad & ~np.isfinite(golden) if not finite_inputs else np.zeros_like(bad)
    if not bad.any():
        return None
    clipped = np.isinf(expected) & np.isfinite(actual) & (np.abs(actual) >= dtype.maximum * 0.999)
    saturated = bool((clipped | (np.isnan(expected) & (actual == 0)))[bad].all()) and bool(clipped.any())
    metrics = {
        "nonfinite_mismatch": float(np.count_nonzero(bad)) / actual.size,
        "nan": float(np.count_nonzero(np.isnan(actual))),
        "inf": float(np.count_nonzero(np.isinf(actual))),
        "worst_index": float(np.argmax(bad.ravel())),
    }
    limit = Limit("nonfinite_mismatch", 0.0, "NaN and Inf stand where the reference computes them, and nowhere else")
    if bool(unclear[bad].all()):
        return Judgement(Status.INCONCLUSIVE, "what comes of the NaN or Inf that went in is not judged", metrics, limit)
    if saturated:
        return Judgement(
            Status.MODE, "saturation: the largest finite value where the reference overflows", metrics, limit
        )
    return Judgement(Status.FAIL, "NaN or Inf on one side only", metrics, limit)


def _judge_finite(work: _Work, scale: Scale, dtype: Dtype, limits: Limits, groups: float) -> Judgement:
    flushed = (work.actual == 0) & (work.golden != 0) & (np.abs(work.golden) < dtype.smallest)
    beyond = flushed & (np.abs(work.golden) > limits.z_warn * work.bound)
    if not beyond.any():
        return _judge_rounding(work, scale, dtype, limits, groups)
    if not flushed.all():
        rest = _judge_rounding(work.select(~flushed), scale, dtype, limits, 0.0)
        if rest.status == Status.FAIL:
            return rest
    metrics = {"exceeding": float(beyond.mean()), "worst_index": float(work.places[np.argmax(beyond)])}
    return Judgement(Status.WARN, "subnormal values flushed to zero", metrics)


def _judge_rounding(work: _Work, scale: Scale, dtype: Dtype, limits: Limits, groups: float) -> Judgement:
    error, native_error = work.actual - work.golden, work.native - work.golden
    units, native_units = np.abs(error) / work.bound, np.abs(native_error) / work.bound
    relax = 1.0 if scale.formula else max(1.0, limits.native_slack * float(native_units.max()))
    z = float(units.max()) / relax
    rho, unit = _find_ratio(work, error, native_error, scale, dtype)
    gain, bias = _find_bias(work, dtype, limits)
    metrics = {
        "z": z,
        "rho": rho,
        "bias": bias,
        "gain": gain,
        "group_bias": groups,
        "max_abs": float(np.abs(error).max()),
        "rel_l2": _relative(error, work.golden),
        "native_rel_l2": _relative(native_error, work.golden),
        "exceeding": float(np.count_nonzero(units > limits.z_warn * relax)) / units.size,
        "worst_index": float(work.places[np.argmax(units)]),
    }
    exceeding = units > limits.z_warn * relax
    decomposed = _is_decomposed(work, error, exceeding, rho, scale, limits, bias)
    found = _decide(metrics, decomposed, work, scale, limits)
    if found.status == Status.FAIL:
        return found
    shown = measure_detectable(work.golden, work.bound, work.actual - work.native, relax, unit, work.low, limits)
    return replace(found, metrics={**found.metrics, **shown})


def _relative(error: Array, golden: Array) -> float:
    norm = float(np.linalg.norm(golden))
    return float(np.linalg.norm(error)) / norm if norm > 0 else float(np.abs(error).max() > 0)


def _find_ratio(work: _Work, error: Array, native_error: Array, scale: Scale, dtype: Dtype) -> tuple[float, float]:
    """(rho, the error of all values, relative to each, that alone makes a rho of 1)."""
    inner = _inner_roundoff(dtype)
    weight = work.scale + np.abs(work.golden) + dtype.eta / dtype.roundoff
    counted = np.where(np.abs(error) <= dtype.eta, 0.0, error)
    growth = max(1.0, math.sqrt(scale.length / 16) / 12) if scale.length else 1.0
    floor = 0.25 * dtype.roundoff * np.abs(work.golden) + inner * work.scale * growth
    reference = max(_rms(native_error / weight), _rms(floor / weight), 1e-300)
    return _rms(counted / weight) / reference, reference / max(_rms(work.golden / weight), 1e-300)


def _rms(values: Array) -> float:
    return float(np.sqrt(np.mean(np.square(values))))


def _find_bias(work: _Work, dtype: Dtype, limits: Limits) -> tuple[float, float]:
    """(gain, significant bias): mean of the signed shift against the native replay, in units of T.

    Where the reference's own arithmetic is the biased one, to be nearer to the golden than it is no fault.
    """
    if not work.low or work.actual.size < limits.minimum_bias:
        return 0.0, 0.0
    gain, bias = _measure_shift(work, work.actual - work.native, limits)
    once = round_once(work.golden, dtype)
    if bias > limits.bias_warn and once is not None:
        # results that are hardly ever another value than the golden rounded once lean as that rounding does, not more
        gain, bias = min((gain, bias), _measure_shift(work, work.actual - once, limits), key=lambda pair: pair[1])
    if bias > limits.bias_warn and _is_nearer(work.actual, work.native, work.golden, work.bound):
        own, true = (_measure_shift(work, side - work.golden, limits) for side in (work.native, work.actual))
        if true[1] <= own[1]:
            return true
    return gain, bias


def round_once(values: Array, dtype: Dtype) -> Array | None:
    """Float64 values rounded to nearest in a 16-bit dtype; None for other dtypes."""
    if dtype.name == "float16":
        return values.astype(np.float16).astype(np.float64)
    if dtype.name != "bfloat16":
        return None
    words = values.astype(np.float32).view(np.uint32).astype(np.uint64)
    rounded = (words + 0x7FFF + ((words >> 16) & 1)) & 0xFFFF0000
    return np.asarray(rounded.astype(np.uint32).view(np.float32), dtype=np.float64)


def settle(values: Array, dtype: Dtype) -> Array:
    """Float64 values as a tensor of this dtype holds them, where it has 16 bits; others as they are."""
    found = round_once(values, dtype)
    return values if found is None else found


def _is_nearer(actual: Array, native: Array, golden: Array, bound: Array) -> bool:
    """Whether the candidate's error as a whole is smaller than that of the reference's own arithmetic."""
    return _rms((actual - golden) / bound) < _rms((native - golden) / bound)


def _measure_shift(work: _Work, difference: Array, limits: Limits) -> tuple[float, float]:
    count = difference.size
    shift = difference / work.bound
    deviation = max(float(shift.std(ddof=1)), 1e-12) / math.sqrt(count)
    gain, offset = float(np.mean(np.sign(work.golden) * shift)), float(shift.mean())
    significant = [abs(mean) for mean in (gain, offset) if abs(mean) / deviation > limits.t]
    return gain, max(significant, default=0.0)


def _find_group_bias(actual: Array, golden: Array, native: Array, bound: Array, limits: Limits) -> float:
    """Coherent shift of whole rows or columns (last axis), in units of T: RMS of group means beyond chance.

    Against the native replay, as in :func:`_find_bias`: no fault where the native is further from the golden.
    """
    if actual.ndim < 2 or actual.size < limits.minimum_group:
        return 0.0
    worst = _measure_groups((actual - native) * np.sign(golden) / bound, limits)
    if worst > limits.group_warn and _is_nearer(actual, native, golden, bound):
        own, true = (_measure_groups((side - golden) * np.sign(golden) / bound, limits) for side in (native, actual))
        if true <= own:
            return 0.0
    return worst


def _measure_groups(shift: Array, limits: Limits) -> float:
    shift = shift.reshape(-1, shift.shape[-1])
    worst = 0.0
    for axis in (0, 1):
        size = shift.shape[axis]
        if size < limits.group_size or shift.shape[1 - axis] < 4:
            continue
        mean, variance = shift.mean(axis=axis), shift.var(axis=axis, ddof=1) / size
        excess = float(np.mean(np.square(mean) - variance))
        if excess > 0 and float(np.median(np.square(mean) / (variance + 1e-30))) > limits.group_f:
            worst = max(worst, math.sqrt(excess))
    return worst


def _is_decomposed(
    work: _Work, error: Array, exceeding: Array, rho: float, scale: Scale, limits: Limits, bias: float
) -> bool:
    if not (work.low and exceeding.any()):
        return False
    room = work.bound + limits.decomposed * work.roundoff * work.scale
    if not bool((np.abs(error) <= room).all()):
        return False
    if scale.split:
        return rho <= limits.rho_split and bias <= limits.bias_fail
    return scale.decomposable and rho > limits.rho_decomposed


def _decide(metrics: dict[str, float], decomposed: bool, work: _Work, scale: Scale, limits: Limits) -> Judgement:
    """The strongest of bound, ratio, bias and group bias."""
    count = work.actual.size
    fails = [
        ("z", limits.z_fail, not decomposed, f"element-wise bound u|g| + {scale.coefficient:.3g} u32 S"),
        ("rho", limits.rho_fail, count >= limits.minimum_ratio, "RMS error of the same-dtype reference"),
        ("bias", limits.bias_decomposed if decomposed else limits.bias_fail, work.low, "mean shift, in bounds"),
        (
            "group_bias",
            limits.group_decomposed if decomposed else limits.group_fail,
            work.low,
            "shift of rows or columns",
        ),
    ]
    for name, value, applies, origin in fails:
        if applies and metrics[name] > value:
            return Judgement(Status.FAIL, _WORDS[name], metrics, Limit(name, value, f"{origin}; S from {scale.origin}"))
    if decomposed:
        return Judgement(Status.WARN, "rounded several times inside, as a build of small operators may", metrics)
    warns = [
        ("z", limits.z_warn, True),
        ("rho", limits.rho_warn, count >= limits.minimum_ratio),
        ("bias", limits.bias_warn, work.low),
        ("group_bias", limits.group_warn, work.low),
    ]
    for name, value, applies in warns:
        if applies and metrics[name] > value:
            return Judgement(Status.WARN, f"noisier: {_WORDS[name]}", metrics, Limit(name, value, "warning level"))
    return Judgement(Status.PASS, "within what arithmetic explains", metrics, Limit("z", limits.z_fail, scale.origin))


_WORDS = {
    "z": "single values are further from the float64 result than rounding explains",
    "rho": "the error as a whole is larger than the reference's own",
    "bias": "the values are shifted systematically",
    "group_bias": "whole rows or columns are shifted",
}
