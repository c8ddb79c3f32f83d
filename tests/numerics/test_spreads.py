"""Histograms of distances against their definitions."""

from __future__ import annotations

import math

import numpy as np
import pytest

from precision_align.core.dtypes import DTYPES, widen
from precision_align.numerics.compiled import load_compiled
from precision_align.numerics.kernels import choose_kernel
from precision_align.numerics.spreads import BINS, ULP_BUCKETS, spread_words

ALL = ["numpy", pytest.param("compiled", marks=pytest.mark.skipif(load_compiled() is None, reason="no C compiler"))]
INTEGERS = {"float32": np.int32, "bfloat16": np.int16, "float16": np.int16, "float64": np.int64}


def ulp_distance(x, y, bits):
    """In Python's own integers, from the signed-magnitude order of IEEE numbers."""
    top = (1 << (bits - 1)) - 1
    first, second = ((int(word) & top) * (-1 if int(word) < 0 else 1) for word in (x, y))
    return abs(first - second)


@pytest.mark.parametrize("kernel", ALL)
@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("size", [0, 1, 2, 511, 512, 513, 3001])
def test_any_bits_against_the_definition(kernel, dtype, size):
    rng = np.random.default_rng(size)
    word, row = INTEGERS[dtype], DTYPES[dtype]
    left = rng.integers(0, 256, size * np.dtype(word).itemsize, dtype=np.uint8).view(word)
    right = left + rng.integers(-3, 4, size).astype(word) * (rng.random(size) < 0.8)
    right[::5] = rng.permutation(left)[::5]
    pair = [item.view(row.word) for item in (left, right)]
    found = spread_words(*pair, row, kernel=choose_kernel(kernel))

    ulps, bins = [0] * ULP_BUCKETS, [0] * BINS
    with np.errstate(all="ignore"):
        numbers = [widen(item, row).astype(np.float64) for item in pair]
        for x, y, a, b in zip(left, right, *numbers):
            if np.isfinite(a) and np.isfinite(b):
                ulps[min(ulp_distance(x, y, np.dtype(word).itemsize * 8).bit_length(), ULP_BUCKETS - 1)] += 1
                bins[int(np.abs(np.float32(a - b)).view(np.uint32)) >> 20] += 1
    assert found.ulps == tuple(ulps)
    assert found.bins == tuple(bins)


@pytest.mark.parametrize("kernel", ALL)
def test_quantiles_are_within_a_sixteenth(kernel):
    rng = np.random.default_rng(4)
    expected = rng.standard_normal(200_000).astype(np.float32)
    actual = expected + rng.standard_normal(200_000).astype(np.float32) * np.float32(1e-3)
    found = spread_words(actual, expected, DTYPES["float32"], kernel=choose_kernel(kernel))
    size = np.abs(actual.astype(np.float64) - expected)
    for name, share in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p999", 0.999)):
        assert found.to_dict()[name] == pytest.approx(np.quantile(size, share), rel=0.0626), name


@pytest.mark.parametrize("kernel", ALL)
def test_zeros_of_both_signs_are_no_distance(kernel):
    left, right = np.array([0.0, -0.0, 1e-45], np.float32), np.array([-0.0, 0.0, -1e-45], np.float32)
    found = spread_words(left, right, DTYPES["float32"], kernel=choose_kernel(kernel))
    assert (found.ulps[0], found.ulps[2], sum(found.ulps)) == (2, 1, 3)
    assert found.to_dict()["ulp_max"] == 3  # 2 units, in the bucket of 2 to 3


@pytest.mark.parametrize("dtype", ["int32", "complex64", "float8_e4m3fn", "bool"])
def test_types_without_such_a_unit_have_quantiles_only(dtype):
    words = np.zeros(100, DTYPES[dtype].word)
    found = spread_words(words, words, DTYPES[dtype])
    assert found.ulps == ()
    assert sum(found.bins) == 100
    assert set(found.to_dict()) == {"p50", "p90", "p99", "p999"}


def test_nothing_finite_has_no_spread():
    words = np.full(5, math.nan, np.float32)
    assert set(spread_words(words, words, DTYPES["float32"]).to_dict().values()) == {0.0}


def test_overflow_of_the_difference_is_infinite():
    words = np.full(5, 1.7e308)
    assert spread_words(words, -words, DTYPES["float64"]).quantile(0.5) == math.inf


def test_shapes_must_agree():
    with pytest.raises(ValueError, match="shapes differ"):
        spread_words(np.zeros(2, np.float32), np.zeros(3, np.float32), DTYPES["float32"])
