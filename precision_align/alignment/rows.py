"""The same rows in another order: tokens that were sent to the rank of their expert."""

from __future__ import annotations

import numpy as np

from precision_align.core.dtypes import Array

_MOST = 4096  # rows whose distances are all measured: 128 MB in float64; beyond, only equal rows are matched
# Of a row's distance to its partner, relative to the next nearest: rounding is orders of magnitude below it, and two
# tokens that are this much alike cannot be told apart after a fault.
_CLEAR = 0.5


def match_rows(ours: Array, theirs: Array) -> Array | None:
    """Indices into the first dimension of ``ours`` that put its rows into the order of ``theirs``.

    Both of one shape, of two dimensions or more. Equal rows first, else each row's nearest. None where the order is the
    same already, or where rows cannot be told apart.
    """
    if ours.shape != theirs.shape or ours.ndim < 2 or len(ours) < 2:
        return None
    left, right = (side.reshape(len(side), -1).astype(np.float64) for side in (ours, theirs))
    if not (np.isfinite(left).all() and np.isfinite(right).all()):
        return None
    places = _match_equal(left, right)
    if places is None and len(left) <= _MOST:
        places = _match_nearest(left, right)
    return None if places is None or (places == np.arange(len(places))).all() else places


def _match_equal(left: Array, right: Array) -> Array | None:
    """By sorting both: equal rows keep their order among each other."""
    first, second = (np.lexsort(side.T[::-1]) for side in (left, right))
    if not np.array_equal(left[first], right[second]):
        return None
    places = np.empty(len(left), dtype=np.int64)
    places[second] = first
    return places


def _match_nearest(left: Array, right: Array) -> Array | None:
    squares = (right**2).sum(1)[:, None] + (left**2).sum(1)[None, :] - 2 * right @ left.T
    distances = np.sqrt(np.maximum(squares, 0))
    places: Array = distances.argmin(1)
    if len(np.unique(places)) < len(places):
        return None
    two = np.partition(distances, 1, axis=1)[:, :2]
    return places if (two[:, 0] <= _CLEAR * two[:, 1]).all() else None
