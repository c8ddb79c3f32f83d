"""The raw metrics against plain float64 NumPy."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from precision_align.core.dtypes import DTYPES, widen
from precision_align.numerics.metrics import measure

BLOCK = 1 << 15  # of the NumPy kernel
LENGTHS = [0, 1, 2, 3, 7, 64, 65, 1000, 4095, 4096, 4097]
FLOATS = [name for name, row in DTYPES.items() if row.kind == "float" and name != "float8_e8m0fnu"]


def plain(actual, expected):
    """The definitions, without blocks: on values finite on both sides."""
    with np.errstate(invalid="ignore"):  # signalling NaN
        a, b = np.asarray(actual, np.float64), np.asarray(expected, np.float64)
    keep = np.isfinite(a) & np.isfinite(b)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    found = {"nonfinite": int((~keep & ~same).sum()), "mismatched": (~same).sum() / max(a.size, 1)}
    a, b = a[keep], b[keep]
    error = a - b
    norm, size = np.linalg.norm(b), np.abs(error)
    found["max_abs"] = size.max(initial=0.0)
    found["mean_abs"] = size.mean() if size.size else 0.0
    found["rmse"] = math.sqrt((size**2).mean()) if size.size else 0.0
    found["bias"] = error.mean() if size.size else 0.0
    found["rel_l2"] = np.linalg.norm(error) / norm if norm else (math.inf if size.any() else 0.0)
    largest = np.abs(b).max(initial=0.0)
    found["over_max"] = found["max_abs"] / largest if largest else (math.inf if size.any() else 0.0)
    return found


def check(actual, expected):
    found, wanted = measure(actual, expected).to_dict(), plain(actual, expected)
    for name, value in wanted.items():
        room = 1e-12 * wanted["mean_abs"] if name == "bias" else 1e-300  # signed sums cancel
        assert found[name] == pytest.approx(value, rel=1e-12, abs=room), name
    return found


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("dtype", FLOATS)
def test_matches_plain_numpy(length, dtype):
    rng = np.random.default_rng(length)
    row = DTYPES[dtype]
    word = np.dtype(row.word)
    if word.kind == "f":
        pair = [rng.standard_normal(length).astype(word) for _ in range(2)]
    else:
        bits = [rng.integers(0, 256, length * word.itemsize, dtype=np.uint8).view(word) for _ in range(2)]
        pair = [widen(item, row) for item in bits]  # NaN, Inf, subnormals and huge values included
    check(*pair)


@pytest.mark.parametrize("length", [1, 64, 4097, BLOCK, BLOCK + 1, 2 * BLOCK + 3])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("side", [0, 1])
def test_one_bad_value_at_the_end_is_seen(length, bad, side):
    pair = [np.ones(length, np.float32), np.ones(length, np.float32)]
    pair[side][-1] = bad
    found = check(*pair)
    assert found["nonfinite"] == 1
    assert found["mismatched"] == pytest.approx(1 / length)


def test_same_nonfinite_pattern_is_equal():
    values = np.array([math.nan, math.inf, -math.inf, 1.0])
    found = measure(values, values.copy())
    assert (found.nonfinite, found.mismatched, found.max_abs) == (0, 0.0, 0.0)


def test_opposite_infinities_differ():
    assert measure(np.array([math.inf]), np.array([-math.inf])).nonfinite == 1


@pytest.mark.parametrize("place", [0, 1, 4096, BLOCK - 1, BLOCK, BLOCK + 7])
def test_worst_index_and_last_blocks(place):
    expected = np.zeros(BLOCK + 8)
    actual = expected.copy()
    actual[place] = 3.0
    found = check(actual, expected)
    assert (found["worst_index"], found["max_abs"]) == (place, 3.0)
    assert found["rel_l2"] == found["over_max"] == found["max_rel"] == math.inf


@pytest.mark.parametrize("noise", [1e-3, 1e-5, 1e-7, 1e-9, 1e-12])
def test_one_minus_cosine_of_nearly_equal_vectors(noise):
    """The naive 1 - a.b/|a||b| loses everything below 1e-16; the truth here is known in closed form."""
    rng = np.random.default_rng(3)
    b = rng.standard_normal(50_000)
    e = rng.standard_normal(50_000)
    e -= b * (e @ b) / (b @ b)  # orthogonal: tan(angle) = |e|/|b| exactly
    e *= noise * np.linalg.norm(b) / np.linalg.norm(e)
    truth = 1 - 1 / math.sqrt(1 + noise**2) if noise > 1e-4 else noise**2 / 2
    assert measure(b + e, b).one_minus_cosine == pytest.approx(truth, rel=1e-3, abs=2e-27)


def test_one_minus_cosine_ends():
    one = np.array([1.0, 2.0])
    assert measure(-one, one).one_minus_cosine == pytest.approx(2.0)
    assert measure(1.01 * one, one).one_minus_cosine == pytest.approx(0.0, abs=1e-15)
    assert measure(one, np.zeros(2)).one_minus_cosine == 1.0
    assert measure(1e-30 * one, 1e30 * one).one_minus_cosine == pytest.approx(0.0, abs=1e-15)
    assert measure(1e-30 * one, -1e30 * one).one_minus_cosine == pytest.approx(2.0)
    assert measure(np.zeros(2), np.zeros(2)).one_minus_cosine == 0.0


@pytest.mark.parametrize("scale", [1e-300, 1e-200, 1.0, 1e155, 1e200, 8e307])
def test_extreme_float64_neither_overflows_nor_vanishes(scale):
    expected = np.array([1.0, -1.0, 0.5, 0.25]) * scale
    actual = expected * np.array([1.0, 1.0, 1.0, 1.5])
    found, same = measure(actual, expected), measure(actual / scale, expected / scale)
    for name in ("rel_l2", "over_max", "max_rel", "one_minus_cosine", "mismatched"):
        assert getattr(found, name) == pytest.approx(getattr(same, name), rel=1e-9), name
    assert found.rmse == pytest.approx(same.rmse * scale, rel=1e-9)


def test_far_apart_float64_is_not_nan():
    found = measure(np.array([1.7e308, 1.0]), np.array([-1.7e308, 1.0]))
    assert found.one_minus_cosine == pytest.approx(2.0)
    assert found.rel_l2 == pytest.approx(2.0)


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"])
def test_integers_are_exact_at_both_ends(dtype):
    info = np.iinfo(dtype)
    expected = np.array([info.max, info.min, info.max, 5], dtype)
    actual = np.array([info.max - 1, info.min, info.max, 4], dtype)
    found = measure(actual, expected)
    assert (found.max_abs, found.mismatched, found.bias) == (1.0, 0.5, -0.5)
    assert found.over_max > 0
    far = measure(np.array([info.max], dtype), np.array([info.min], dtype))
    assert far.max_abs == float(int(info.max) - int(info.min))


def test_booleans():
    found = measure(np.array([True, False, True]), np.array([True, True, False]))
    assert found.mismatched == pytest.approx(2 / 3)
    assert found.bias == 0.0


def test_complex_by_modulus():
    expected = np.array([3 + 4j, 1j, complex(math.nan, 0)], np.complex64)
    actual = np.array([3 + 4j, 1j + 0.3 + 0.4j, complex(math.nan, 0)], np.complex64)
    found = measure(actual, expected)
    assert found.max_abs == pytest.approx(0.5, rel=1e-6)
    assert found.nonfinite == 0
    assert found.rel_l2 == pytest.approx(0.5 / math.sqrt(26), rel=1e-6)


def test_shapes_must_agree():
    with pytest.raises(ValueError, match="shapes differ"):
        measure(np.zeros((2, 3)), np.zeros((3, 2)))


@settings(max_examples=80, deadline=None, derandomize=True)
@given(
    st.lists(st.tuples(st.floats(width=32), st.floats(width=32)), max_size=60),
    st.integers(0, 3),
)
def test_any_float32_values(pairs, at):
    values = np.array(pairs, np.float32).reshape(-1, 2)
    left, right = values[:, 0], values[:, 1]
    found = check(left, right)
    assert 0.0 <= found["mismatched"] <= 1.0
    assert not any(math.isnan(value) for value in found.values())
    assert 0.0 <= found["one_minus_cosine"] <= 2.0 + 1e-9
    same = measure(left, left.copy())
    assert (same.mismatched, same.nonfinite, same.max_abs, same.one_minus_cosine) == (0.0, 0, 0.0, 0.0)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.integers(1, 200), st.integers(0, 2**32 - 1))
def test_layout_does_not_matter(size, seed):
    rng = np.random.default_rng(seed)
    left, right = rng.standard_normal((2, size, 3))
    assert measure(left, right) == measure(np.asfortranarray(left), np.ascontiguousarray(right))
