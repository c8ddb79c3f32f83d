"""Error maps: every bin holds what it says, whatever the shape and the values."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from precision_align.core.results import ErrorMap
from precision_align.numerics import errormaps
from precision_align.numerics.errormaps import BINS, map_errors


def make(actual: object, expected: object) -> ErrorMap:
    found = map_errors("k", "reference", np.asarray(actual), np.asarray(expected))
    assert found is not None
    return found


def largest(error: np.ndarray, axis: int, bin_: int) -> float:
    """The largest error of a bin, from its definition."""
    size = error.shape[axis]
    bins = min(size, BINS)
    part = np.take(error, range(bin_ * size // bins, (bin_ + 1) * size // bins), axis=axis)
    return float(part.max())


@settings(max_examples=25, deadline=None)
@given(
    shape=st.lists(st.sampled_from([1, 2, 3, 5, 64, 65, 150]), min_size=0, max_size=3),
    seed=st.integers(0, 99),
    step=st.sampled_from([300, 9000, 1 << 20]),
)
def test_bins_hold_the_largest_error_and_every_element(shape: list[int], seed: int, step: int) -> None:
    random = np.random.default_rng(seed)
    expected = np.asarray(random.standard_normal(shape), dtype=np.float32)
    actual = expected + np.float32(1e-3) * np.asarray(random.standard_normal(shape), dtype=np.float32)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(errormaps, "_STEP", step)
        found = make(actual, expected)
    error = np.abs(actual.astype(np.float64) - expected)
    assert found.shape == tuple(shape)
    assert [dimension for dimension, _ in found.profiles] == [place for place, size in enumerate(shape) if size > 1]
    for dimension, values in found.profiles:
        wanted = [largest(error, dimension, bin_) for bin_ in range(min(shape[dimension], BINS))]
        assert values == pytest.approx(wanted, rel=6e-3)
    assert sum(found.expected) == sum(found.actual) == error.size
    assert sum(found.errors) + found.equal == error.size
    assert max(map(len, [found.expected, found.errors, found.cells, *found.cells])) <= BINS
    if found.cells:
        assert max(map(max, found.cells)) == pytest.approx(error.max(), rel=6e-3)


def test_cells_are_token_by_channel_or_height_by_width() -> None:
    axes = {(2, 128, 768): (1, 2), (4, 16, 32, 32): (2, 3), (1, 90, 120, 3): (1, 2), (7, 1, 5): (0, 2), (9,): ()}
    for shape, wanted in axes.items():
        assert make(np.ones(shape), np.zeros(shape)).axes == wanted


def test_one_wrong_column_lies_in_its_cells_alone() -> None:
    expected = np.zeros((100, 320))
    actual = expected.copy()
    actual[:, 43] = 1.0
    cells = np.array(make(actual, expected).cells)
    assert cells.shape == (64, 64)
    assert np.flatnonzero(cells.any(axis=0)).tolist() == [8]  # 43 * 64 // 320
    assert cells[:, 8].all()


def test_what_is_not_finite_counts_once_and_equal_infinities_not_at_all() -> None:
    found = make([np.nan, np.inf, -np.inf, np.nan, 1.0, 2.0], [np.nan, np.inf, np.inf, 0.0, 1.0, 2.5])
    assert (found.nonfinite, found.equal) == (2, 3)
    assert found.profiles == ((0, (0.0, 0.0, math.inf, math.inf, 0.0, 0.5)),)
    assert found.bounds == (0.0, 2.5)
    assert (sum(found.actual), sum(found.expected)) == (2, 3)
    assert sum(found.errors) == 1


@pytest.mark.parametrize(
    ("actual", "expected"),
    [
        ([1e308, -1e308], [-1e308, 1e308]),
        ([5e-324, 1.0], [0.0, 1e300]),
        ([True, False], [True, True]),
        ([1 + 1j, 2j], [1 + 1j, 1j]),
        ([np.nan, np.nan], [1.0, 2.0]),
        (np.arange(5, dtype=np.int64) << 60, np.zeros(5, dtype=np.int64)),
        (2.0, 2.0),
    ],
)
def test_extreme_values_are_binned(actual: object, expected: object) -> None:
    found = make(actual, expected)
    size = np.asarray(actual).size
    assert found.equal + found.nonfinite + sum(found.errors) == size
    assert found.decades[1] - found.decades[0] <= BINS


def test_no_map_of_other_shapes_or_of_nothing() -> None:
    assert map_errors("k", "golden", np.zeros(3), np.zeros(4)) is None
    assert map_errors("k", "golden", np.zeros((0, 2)), np.zeros((0, 2))) is None
