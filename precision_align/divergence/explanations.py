"""Guesses at the cause, tried on the suspect's own tensors and ranked by what they leave of the error.

Each hypothesis turns the float64 golden into what the candidate would have computed under it. ``residual``: the norm of
candidate minus hypothesis over that of candidate minus golden: 1 explains nothing, 0 everything. "Unexplained" is an
answer too: an empty list.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from precision_align.core.dtypes import Array, dtype_of
from precision_align.core.results import Explanation
from precision_align.divergence.ranking import Candidate, rank
from precision_align.divergence.weights import explain_weight
from precision_align.numerics.judgement import round_once, settle

# A hypothesis that leaves more than this explains too little to be worth a user's time; the right one leaves rounding.
WORTH = 0.2
# Of fewer values than this some guess comes near by chance: only one that hits them, but for a rounding, counts.
FEW, WORTH_FEW = 8, 1e-3
# The largest count of ranks or micro-batches that is looked for, and how exact a whole number must be.
MOST_COUNTED, COUNT_SLACK = 4096, 1e-4
# Relative spread of factors from which they count as different ones: above float32's rounding of a mean over a row.
SPREAD = 1e-5
# A mean gain counts from so many standard errors on.
SIGNIFICANT = 8.0
# So many different values must all be of a lower dtype: a few round numbers are of every dtype.
VARIED = 16
# What several roundings inside leave, in units of what one leaves.
ROUNDED = 2.0
# Slices further apart than this in direction are not the same slice; more of them are not compared.
SAME_SLICE, MOST_SLICES = 0.99, 1024
# Share of the squared error that a region must hold to be called the place of the error.
CONFINED = 0.98

Hypothesis = tuple[str, str, Array]


def explain(
    actual: Array,
    golden: Array,
    dtype: str,
    alternatives: Sequence[Hypothesis] = (),
    given: Array | None = None,
) -> list[Explanation]:
    """Ranked explanations of ``actual`` (float64) that should have been ``golden`` (float64, same shape).

    ``alternatives``: what variants of the reference's code give, with name and text; ``given``: the only input, where
    the code may be a product of it and a weight (last dimension: what is summed over). In 16 bits each hypothesis is
    rounded as the candidate's values are, so that their rounding does not count as unexplained.
    """
    if actual.shape != golden.shape or not actual.size or actual.dtype.kind != "f":
        return []
    kind = dtype_of(dtype)
    with np.errstate(all="ignore"):
        finite = np.isfinite(actual) & np.isfinite(golden)
        error = _norm(actual - settle(golden, kind), finite)
        if error == 0:  # only what is not finite differs, if anything
            return list(_see_overflow(actual, golden, dtype))
        makers = _HYPOTHESES if actual.size > 1 else _SCALAR_HYPOTHESES
        ours, theirs = (np.where(finite, values, 0.0) for values in (actual, golden))
        tried = [item for make in makers for item in make(ours, theirs, dtype)]
        found: list[Candidate] = [
            (Explanation(name, text, _norm(actual - settled, finite) / error), settled)
            for name, text, value in [*tried, *alternatives]
            if value.shape == actual.shape
            for settled in [settle(value, kind)]
            if bool(np.isfinite(settled[finite]).all())
        ]
        if actual.size > 1:
            found += [(item, None) for item in _explain_place(actual, golden, finite)]
            found += [(item, None) for look in _SIGNATURES for item in look(actual, golden, dtype)]
        if given is not None:
            found += [(item, None) for item in explain_weight(given, actual, golden)]
    worth = WORTH if actual.size >= FEW else max(WORTH_FEW, 2 * kind.roundoff)
    return rank([pair for pair in found if pair[0].residual <= worth], error)


def _norm(values: Array, finite: Array) -> float:
    return float(np.linalg.norm(np.where(finite, np.nan_to_num(values), 0.0)))


def _try_counts(actual: Array, golden: Array, dtype: str) -> Iterator[Hypothesis]:
    """A single number that is a whole multiple, or a whole part, of what it should be."""
    ratio = float(actual.ravel()[0] / golden.ravel()[0]) if golden.any() else 0.0
    name = name_count(ratio)
    if name:
        count = round(ratio) if ratio >= 1 else 1 / round(1 / ratio)
        yield "scaled", f"scaled by a constant, {name}", count * golden


def name_count(factor: float) -> str:
    """What a factor that is a whole number, or one over it, may come from; "" for any other."""
    if factor <= 0:
        return ""
    whole = max(factor, 1 / factor)
    if not 1.5 < whole <= MOST_COUNTED or abs(whole / round(whole) - 1) > COUNT_SLACK:
        return ""
    written = f"{round(whole)}" if factor > 1 else f"1/{round(whole)}"
    return f"{written}: a number of ranks, micro-batches or accumulated steps is counted twice or not at all"


def _try_scale(actual: Array, golden: Array, dtype: str) -> Iterator[Hypothesis]:
    base = float(np.nansum(golden * golden))
    if base <= 0:
        return
    factor = float(np.nansum(actual * golden)) / base
    if abs(factor + 1) < 1e-3:
        yield "sign", "the sign is inverted", -golden
    elif factor not in (0, 1):
        yield "scaled", f"scaled by a constant, {name_count(factor) or f'{factor:.6g}'}", factor * golden


def _try_shift(actual: Array, golden: Array, dtype: str) -> Iterator[Hypothesis]:
    offset = float(np.nanmean(actual - golden))
    yield "shifted", f"shifted by a constant, {offset:.4g}", golden + offset


def _try_rows(actual: Array, golden: Array, dtype: str) -> Iterator[Hypothesis]:
    if golden.ndim < 2 or golden.shape[-1] < 4:
        return
    base = np.nansum(golden * golden, axis=-1, keepdims=True)
    factors = np.nansum(actual * golden, axis=-1, keepdims=True) / np.where(base > 0, base, 1.0)
    if float(np.std(factors)) > SPREAD * float(np.abs(np.mean(factors))):
        text = "each row is scaled by its own factor: its statistics (eps, variance, sum) are computed differently"
        yield "row statistics", text, factors * golden
    columns = np.nansum(actual * golden, axis=tuple(range(golden.ndim - 1)), keepdims=True)
    norms = np.nansum(golden * golden, axis=tuple(range(golden.ndim - 1)), keepdims=True)
    scales = columns / np.where(norms > 0, norms, 1.0)
    if golden.size // golden.shape[-1] >= 4 and float(np.std(scales)) > SPREAD * float(np.abs(np.mean(scales))):
        yield "channel scales", "each channel is scaled by its own factor: another weight or scale", scales * golden


def _try_lower_types(actual: Array, golden: Array, dtype: str) -> Iterator[Hypothesis]:
    if dtype in ("float32", "float64"):
        yield "cast through float16", "rounded to float16 on the way", _round(golden, "float16")
        yield "cast through bfloat16", "rounded to bfloat16 on the way", _round(golden, "bfloat16")


def _round(values: Array, name: str) -> Array:
    found = round_once(values, dtype_of(name))
    assert found is not None
    return found


def _try_clamp(actual: Array, golden: Array, dtype: str) -> Iterator[Hypothesis]:
    low, high = float(np.nanmin(actual)), float(np.nanmax(actual))
    if low < high and (low > np.nanmin(golden) or high < np.nanmax(golden)):
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
    if share > 0 and not actual.any():
        yield "all zero", "all zero: detached, dropped, masked or never written", np.zeros_like(golden)
    elif share > 0:
        text = f"{share:.1%} of the values are zero instead of what was computed: dropped, masked or never written"
        yield "zeroed", text, np.where(zeroed, 0.0, golden)


def _try_dropout(actual: Array, golden: Array, dtype: str) -> Iterator[Hypothesis]:
    """Zeros here and there, and one factor for what is left."""
    dropped = (actual == 0) & (golden != 0)
    kept = ~dropped
    base = float(np.sum(golden[kept] ** 2))
    if not dropped.any() or base <= 0:
        return
    factor = float(np.sum(actual[kept] * golden[kept])) / base
    rate = np.count_nonzero(dropped) / max(1, int(np.count_nonzero(golden)))
    if abs(factor * (1 - rate) - 1) < 0.1 and factor > 1 + SPREAD:
        text = f"dropout is on: {rate:.1%} of the values are zero, the others are {factor:.4g} times what was computed"
        yield "dropout", text, np.where(dropped, 0.0, factor * golden)


def _try_products(actual: Array, golden: Array, dtype: str) -> Iterator[Hypothesis]:
    """The error is one number a row times one number a channel, and not merely because it sits in one of them."""
    if golden.ndim < 2 or golden.shape[-1] < 8 or golden.size // golden.shape[-1] < 8:
        return
    error = (actual - golden).reshape(-1, golden.shape[-1])
    if not np.isfinite(error).all():
        return
    channel = np.ones(error.shape[1])
    for _ in range(8):  # power iteration: the leading pair
        row = error @ channel
        channel = error.T @ row
        channel /= max(float(np.linalg.norm(channel)), 1e-300)
    row = error @ channel
    if max(float((side * side).max() / max(float(side @ side), 1e-300)) for side in (row, channel)) >= CONFINED:
        return
    text = (
        "the error is one number a row times one number a channel: a statistic of the row, or one term of each sum, is "
        "missing or one too many"
    )
    yield "row shift", text, golden + np.outer(row, channel).reshape(golden.shape)


def _try_permutations(actual: Array, golden: Array, dtype: str) -> Iterator[Hypothesis]:
    """Slices stand in other places: along one dimension, or all rows together."""
    forms = [(axis, golden.shape) for axis in range(golden.ndim)]
    if golden.ndim > 2:
        forms.append((0, (golden.size // golden.shape[-1], golden.shape[-1])))
    for axis, shape in forms:
        order = _match_slices(actual.reshape(shape), golden.reshape(shape), axis)
        if order is None:
            continue
        where = "all rows" if shape != golden.shape else f"dimension {axis} (size {shape[axis]})"
        steps = set(((order - np.arange(len(order))) % len(order)).tolist())
        how = f"shifted by {steps.pop()}" if len(steps) == 1 else f"permuted: {_list_order(order)}"
        value = np.take(golden.reshape(shape), order, axis=axis).reshape(golden.shape)
        yield "permuted", f"{where} {'are' if where == 'all rows' else 'is'} {how}", value


def _match_slices(actual: Array, golden: Array, axis: int) -> Array | None:
    """Index of the golden slice that each slice of the candidate looks like; None where they match in place or not."""
    size = golden.shape[axis]
    if not 2 <= size <= MOST_SLICES or golden.size // size < 8:
        return None
    left, right = (np.moveaxis(values, axis, 0).reshape(size, -1) for values in (actual, golden))
    left, right = (
        values / np.maximum(np.linalg.norm(values, axis=1, keepdims=True), 1e-300) for values in (left, right)
    )
    alike = left @ right.T
    own = np.diagonal(alike)
    order = np.where(own > SAME_SLICE, np.arange(size), np.argmax(alike, axis=1))
    matched = np.take_along_axis(alike, order[:, None], axis=1)[:, 0] > SAME_SLICE
    if (order == np.arange(size)).all() or float(np.mean(matched)) < CONFINED:
        return None
    return np.asarray(order)


def _list_order(order: Array) -> str:
    shown = ", ".join(str(int(index)) for index in order[:8])
    return f"({shown}{', ...' if len(order) > 8 else ''})"


def _see_grid(actual: Array, golden: Array, dtype: str) -> Iterator[Explanation]:
    """Every value has fewer bits than its dtype: it was stored or computed in a lower one."""
    if dtype not in ("float32", "float64"):
        return
    same = np.isfinite(actual) & (actual != 0)
    if np.count_nonzero(np.diff(np.sort(actual[same]))) < VARIED - 1:  # np.unique would import numpy.ma first
        return
    for name in ("bfloat16", "float16"):
        own = float(np.mean((_round(actual, name) != actual)[same])) if same.any() else 1.0
        if own <= 1 - CONFINED and float(np.mean((_round(golden, name) != golden)[same])) > 0.5:
            text = f"every value is one of {name}: stored or computed in {name} on the way"
            yield Explanation(f"computed in {name}", text, own)
            return  # what fits into bfloat16 fits into float16


def _see_gain(actual: Array, golden: Array, dtype: str) -> Iterator[Explanation]:
    """A factor that each value's own rounding hides and the mean shows."""
    keep = np.isfinite(actual) & np.isfinite(golden)
    base = float(np.sum(golden[keep] ** 2))
    if dtype in ("float32", "float64") or base <= 0:
        return
    factor = float(np.sum(actual[keep] * golden[keep])) / base
    error = float(np.sqrt(np.sum(((actual - factor * golden) * golden)[keep] ** 2))) / base
    rounded = round_once(factor * golden, dtype_of(dtype))
    left = _norm(actual - factor * golden, keep)
    if rounded is None or left > ROUNDED * _norm(rounded - factor * golden, keep):
        return  # what is left is no rounding: the mean gain is not what is wrong
    if abs(factor - 1) > SIGNIFICANT * error:
        text = f"scaled by a constant, {factor:.6g}, as the mean over all values shows"
        yield Explanation("scaled", text, error / abs(factor - 1))


def _see_overflow(actual: Array, golden: Array, dtype: str) -> Iterator[Explanation]:
    """Infinities where the values are finite: something inside has a smaller range."""
    lost = ~np.isfinite(actual) & np.isfinite(golden)
    if not lost.any():
        return
    kept = np.isfinite(actual) & np.isfinite(golden)
    larger = float(np.median(np.abs(golden[lost]))) > float(np.median(np.abs(golden[kept]))) if kept.any() else True
    text = f"overflow: {np.count_nonzero(lost)} values are Inf or NaN"
    text += (
        ", mostly where the results are large: an intermediate of a smaller range, such as float16" if larger else ""
    )
    yield Explanation("overflow", text, 0.0)


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
        if 0 < touched.size <= size // 2 and float(mass[touched].sum()) >= CONFINED:
            text = f"confined to {_describe(touched, size)} of dimension {axis} (size {size})"
            found.append(Explanation("confined", text, float(np.sqrt(max(0.0, 1 - mass[touched].sum())))))
    return found


def explain_part(actual: Array, golden: Array, parts: Sequence[tuple[str, Array]]) -> list[Explanation]:
    """Which of several joined modules the error is in, if it is in one; ``parts``: name and places in the last axis."""
    if not parts or actual.shape != golden.shape or actual.ndim == 0:
        return []
    with np.errstate(all="ignore"):
        square = np.nan_to_num((actual - golden) ** 2)
    total = float(square.sum())
    for name, places in parts:
        share = float(square[..., places].sum()) / total if total > 0 and places.max() < actual.shape[-1] else 0.0
        if share >= CONFINED:
            return [Explanation("confined", f"confined to the candidate's {name}", float(np.sqrt(max(0.0, 1 - share))))]
    return []


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
    _try_dropout,
    _try_products,
    _try_permutations,
)
_SCALAR_HYPOTHESES = (_try_counts,)
_SIGNATURES: tuple[Callable[[Array, Array, str], Iterator[Explanation]], ...] = (_see_grid, _see_gain, _see_overflow)
