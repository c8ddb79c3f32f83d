"""Guesses at the cause, tried on the suspect's own tensors and ranked by what they leave of the error.

Each hypothesis turns the float64 golden into what the candidate would have computed under it. ``residual``: the norm of
candidate minus hypothesis over that of candidate minus golden: 1 explains nothing, 0 everything. "Unexplained" is an
answer too: an empty list.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from precision_align.core.dtypes import Array
from precision_align.core.results import Explanation

# A hypothesis that leaves more than this explains too little to be worth a user's time; the right one leaves rounding.
WORTH = 0.2
MOST = 5
# Share of the squared error that a region must hold to be called the place of the error.
CONFINED = 0.98

Hypothesis = tuple[str, str, Array]


def explain(actual: Array, golden: Array, dtype: str) -> list[Explanation]:
    """Ranked explanations of ``actual`` (float64) that should have been ``golden`` (float64, same shape)."""
    if actual.shape != golden.shape or actual.size < 2 or actual.dtype.kind != "f":
        return []
    with np.errstate(all="ignore"):
        finite = np.isfinite(actual) & np.isfinite(golden)
        error = _norm(actual - golden, finite)
        if error == 0:
            return []
        found = [
            Explanation(name, text, _norm(actual - value, finite) / error)
            for make in _HYPOTHESES
            for name, text, value in make(actual, golden, dtype)
        ]
        found += _explain_place(actual, golden, finite)
    worth = [item for item in found if np.isfinite(item.residual) and item.residual <= WORTH]
    return sorted(worth, key=lambda item: item.residual)[:MOST]


def _norm(values: Array, finite: Array) -> float:
    return float(np.linalg.norm(np.where(finite, np.nan_to_num(values), 0.0)))


def _try_scale(actual: Array, golden: Array, dtype: str) -> Iterator[Hypothesis]:
    base = float(np.nansum(golden * golden))
    if base <= 0:
        return
    factor = float(np.nansum(actual * golden)) / base
    if abs(factor + 1) < 1e-3:
        yield "sign", "the sign is inverted", -golden
    elif factor != 1:
        yield "scaled", f"scaled by a constant, {factor:.6g}", factor * golden


def _try_shift(actual: Array, golden: Array, dtype: str) -> Iterator[Hypothesis]:
    offset = float(np.nanmean(actual - golden))
    yield "shifted", f"shifted by a constant, {offset:.4g}", golden + offset


def _try_rows(actual: Array, golden: Array, dtype: str) -> Iterator[Hypothesis]:
    if golden.ndim < 2 or golden.shape[-1] < 4:
        return
    base = np.nansum(golden * golden, axis=-1, keepdims=True)
    factors = np.nansum(actual * golden, axis=-1, keepdims=True) / np.where(base > 0, base, 1.0)
    if float(np.std(factors)) > 1e-3 * float(np.abs(np.mean(factors))):
        text = "each row is scaled by its own factor: its statistics (eps, variance, sum) are computed differently"
        yield "row statistics", text, factors * golden
    columns = np.nansum(actual * golden, axis=tuple(range(golden.ndim - 1)), keepdims=True)
    norms = np.nansum(golden * golden, axis=tuple(range(golden.ndim - 1)), keepdims=True)
    scales = columns / np.where(norms > 0, norms, 1.0)
    if golden.size // golden.shape[-1] >= 4 and float(np.std(scales)) > 1e-3 * float(np.abs(np.mean(scales))):
        yield "channel scales", "each channel is scaled by its own factor: another weight or scale", scales * golden


def _try_lower_types(actual: Array, golden: Array, dtype: str) -> Iterator[Hypothesis]:
    if dtype in ("float32", "float64"):
        yield "cast through float16", "rounded to float16 on the way", golden.astype(np.float16).astype(np.float64)
        yield "cast through bfloat16", "rounded to bfloat16 on the way", _round_bfloat16(golden)


def _round_bfloat16(values: Array) -> Array:
    words = values.astype(np.float32).view(np.uint32).astype(np.uint64)
    rounded = (words + 0x7FFF + ((words >> 16) & 1)) & 0xFFFF0000
    return np.asarray(rounded.astype(np.uint32).view(np.float32), dtype=np.float64)


def _try_clamp(actual: Array, golden: Array, dtype: str) -> Iterator[Hypothesis]:
    low, high = float(np.nanmin(actual)), float(np.nanmax(actual))
    if low > np.nanmin(golden) or high < np.nanmax(golden):
        yield "clamped", f"clamped to [{low:.4g}, {high:.4g}]", np.clip(golden, low, high)


def _try_orders(actual: Array, golden: Array, dtype: str) -> Iterator[Hypothesis]:
    if golden.ndim >= 2:
        swapped = np.ascontiguousarray(np.swapaxes(golden, -1, -2))
        if swapped.shape == golden.shape:
            yield "transposed", "the last two dimensions are transposed", swapped
        text = "values are right but in memory order instead of logical order: a layout (strides) was ignored"
        yield "memory order", text, swapped.reshape(golden.shape)
    if golden.ndim >= 1 and golden.shape[-1] % 2 == 0:
        half = golden.shape[-1] // 2
        yield "halves swapped", "the two halves of the last dimension are swapped", np.roll(golden, half, axis=-1)
        order = np.arange(golden.shape[-1]).reshape(2, half).T.ravel()
        text = "interleaved pairs against halves: the last dimension is permuted"
        yield "interleaved", text, golden[..., order]
        yield "interleaved", text, golden[..., np.argsort(order)]
    for axis in range(golden.ndim):
        if golden.shape[axis] > 2:
            yield "reversed", f"reversed along dimension {axis}", np.flip(golden, axis)
            for step in (1, -1):
                yield "off by one", f"shifted by {step:+d} along dimension {axis}", np.roll(golden, step, axis)


def _try_zeros(actual: Array, golden: Array, dtype: str) -> Iterator[Hypothesis]:
    zeroed = (actual == 0) & (golden != 0)
    share = float(np.mean(zeroed))
    if share > 0:
        text = f"{share:.1%} of the values are zero instead of what was computed: dropped, masked or never written"
        yield "zeroed", text, np.where(zeroed, 0.0, golden)


def _explain_place(actual: Array, golden: Array, finite: Array) -> list[Explanation]:
    """Where the error sits, if it sits in one slice of a dimension: a tail, a token, a head, a channel."""
    square = np.where(finite, np.nan_to_num(actual - golden) ** 2, 0.0)
    total = float(square.sum())
    found = []
    for axis in range(square.ndim):
        size = square.shape[axis]
        if size < 4:
            continue
        mass = square.sum(axis=tuple(other for other in range(square.ndim) if other != axis)) / total
        touched = np.flatnonzero(mass > (1 - CONFINED) / size)
        if 0 < touched.size <= size // 4 and float(mass[touched].sum()) >= CONFINED:
            text = f"confined to {_describe(touched, size)} of dimension {axis} (size {size})"
            found.append(Explanation("confined", text, float(np.sqrt(max(0.0, 1 - mass[touched].sum())))))
    return found


def _describe(indices: Array, size: int) -> str:
    first, last = int(indices[0]), int(indices[-1])
    if indices.size == 1:
        return f"index {first}"
    if last - first + 1 == indices.size:
        return f"the last {indices.size}" if last == size - 1 else f"indices {first} to {last}"
    return f"{indices.size} indices ({', '.join(str(int(index)) for index in indices[:4])}, ...)"


_HYPOTHESES: tuple[Callable[[Array, Array, str], Iterator[Hypothesis]], ...] = (
    _try_scale,
    _try_shift,
    _try_rows,
    _try_lower_types,
    _try_clamp,
    _try_orders,
    _try_zeros,
)
