"""A product that came out wrong, looked at as the right product with another weight.

Where the reference's result is an affine map of the only input, and there are more rows than weights of one output,
both maps follow from the data by least squares. What distinguishes the candidate's from the reference's says what
happened to the weight: other scales or zero points, rows or columns in another order, a tail that was not read.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from precision_align.core.dtypes import Array
from precision_align.core.results import Explanation
from precision_align.divergence.ranking import measure_level

# Rows for each weight of an output: with fewer, any result could be had from some weight.
ROWS = 1.5
LINEAR = 1e-6  # what the fit of a linear result leaves of it; float32 inside leaves 1e-7
WORTH = 0.2  # as of every explanation
GROUPS = (256, 128, 64, 32, 16, 8)
# A fitted weight is known this well, in standard errors: nearer to zero it is zero.
CERTAIN = 6.0
MOST = 2048  # inputs; the fit costs their square times the rows


def explain_weight(given: Array, actual: Array, golden: Array) -> list[Explanation]:
    """Explanations of ``actual`` (..., outputs) by another weight than the one that gives ``golden`` from ``given``
    (..., inputs), all float64. Empty where the reference is no product, or no weight explains the candidate."""
    fitted = _fit(given, actual, golden)
    if fitted is None:
        return []
    right, wrong, left = fitted
    error = float(np.linalg.norm(wrong - right))
    found = [
        Explanation("weight", f"as if the weight were another one: {text}", max(left, residual))
        for text, value in _list_changes(wrong, right)
        for residual in [float(np.linalg.norm(wrong - value)) / error]
        if residual <= WORTH
    ]
    if found:
        return sorted(found, key=lambda item: measure_level(item.residual))[:2]  # of equal ones the simplest
    share = error / float(np.linalg.norm(right))
    text = f"as if the weight were another one (stale, or read wrongly): {share:.2g} of it differs"
    return [Explanation("weight values", text, left)]


def _fit(given: Array, actual: Array, golden: Array) -> tuple[Array, Array, float] | None:
    """The reference's and the candidate's weight (outputs, inputs), and what the latter leaves of the error."""
    if not golden.ndim or given.ndim != golden.ndim or given.shape[:-1] != golden.shape[:-1]:
        return None
    x = given.reshape(-1, given.shape[-1])
    if not 2 <= x.shape[1] <= MOST or len(x) < ROWS * (x.shape[1] + 1) or golden.shape[-1] < 2:
        return None
    x = np.concatenate([x, np.ones((len(x), 1))], axis=1)
    sides = [values.reshape(len(x), -1) for values in (golden, actual)]
    if not all(np.isfinite(values).all() for values in (x, *sides)):
        return None
    weights = [np.linalg.lstsq(x, values, rcond=None)[0] for values in sides]
    if np.linalg.norm(sides[0] - x @ weights[0]) > LINEAR * np.linalg.norm(sides[0]):
        return None
    rest, error = float(np.linalg.norm(sides[1] - x @ weights[1])), float(np.linalg.norm(sides[1] - sides[0]))
    if rest > WORTH * error:
        return None
    noise = rest / np.sqrt(actual.size * max(1 - x.shape[1] / len(x), 1e-3))
    spread = noise * np.sqrt(np.diag(np.linalg.pinv(x.T @ x)))[:-1]  # standard error of each input's weights
    right, wrong = (weight[:-1].T for weight in weights)
    wrong = np.where(np.abs(wrong) <= np.maximum(CERTAIN * spread, LINEAR * float(np.abs(right).max())), 0.0, wrong)
    return (right, wrong, rest / error) if (wrong != right).any() else None


def _list_changes(wrong: Array, right: Array) -> Iterator[tuple[str, Array]]:
    """(text, the right weight changed so)."""
    factor = float(np.sum(wrong * right) / np.sum(right * right))
    yield f"scaled by a constant, {factor:.6g}", factor * right
    for axis, which in ((0, "rows"), (1, "columns")):
        order = _match(np.moveaxis(wrong, axis, 0), np.moveaxis(right, axis, 0))
        if order is not None:
            shown = ", ".join(str(int(index)) for index in order[:8])
            yield f"its {which} stand in another order: ({shown}, ...)", np.take(right, order, axis=axis)
    if right.shape[0] == right.shape[1]:
        yield "transposed", right.T
    for axis, which in ((0, "rows"), (1, "columns")):
        lost = ~wrong.any(axis=1 - axis)
        if 0 < lost.sum() < lost.size:
            places = np.flatnonzero(lost)
            tail = "the last " if places[-1] == lost.size - 1 and places.size == lost.size - places[0] else ""
            text = f"{tail}{places.size} of its {lost.size} {which} are not read, or zero"
            yield text, np.where(np.expand_dims(lost, 1 - axis), 0.0, right)
    for axis, which in ((1, "row"), (0, "column")):
        factors = np.sum(wrong * right, axis, keepdims=True) / np.maximum(
            np.sum(right * right, axis, keepdims=True), 1e-300
        )
        yield f"each {which} is scaled by its own factor (another scale a channel)", factors * right
    yield from _list_groups(wrong, right)


def _list_groups(wrong: Array, right: Array) -> Iterator[tuple[str, Array]]:
    """Quantised by groups along a row: another scale, another zero point."""
    for size in GROUPS:
        if right.shape[1] % size or right.shape[1] < size:
            continue
        theirs, ours = (values.reshape(len(right), -1, size) for values in (right, wrong))
        factors = np.sum(ours * theirs, -1, keepdims=True) / np.maximum(np.sum(theirs**2, -1, keepdims=True), 1e-300)
        shifts = np.mean(ours - theirs, -1, keepdims=True)
        text = f"dequantised with other scales: each group of {size} columns is scaled by its own factor"
        yield text, (factors * theirs).reshape(right.shape)
        text = f"dequantised with another zero point: each group of {size} columns is shifted by its own amount"
        yield text, (theirs + shifts).reshape(right.shape)


def _match(wrong: Array, right: Array) -> Array | None:
    """For each slice of the wrong weight the right one that it is; None where they are not a re-ordering."""
    ours, theirs = (
        values / np.maximum(np.linalg.norm(values, axis=1, keepdims=True), 1e-300) for values in (wrong, right)
    )
    order = np.argmax(ours @ theirs.T, axis=1)
    return None if (order == np.arange(len(order))).all() or np.unique(order).size < len(order) else order
