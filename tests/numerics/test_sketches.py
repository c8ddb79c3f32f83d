"""The sketch is linear, and its distances are the true ones within the stated resolution."""

from __future__ import annotations

import math
from typing import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from precision_align.core.dtypes import Array, dtype_of
from precision_align.numerics.sketches import PERIODS, count_buckets, fold, relative_distance, repeated_signs, sketch

F8, F4 = dtype_of("float64"), dtype_of("float32")


def make_signs(size: int) -> Array:
    """r, element by element."""
    p, q = (repeated_signs(which)[:period] for which, period in enumerate(PERIODS))
    return np.asarray(np.resize(p, size) * np.resize(q, size))


def plain_sketch(values: Array) -> Array:
    """The definition, one element after the other."""
    buckets = count_buckets(values.size)
    result = [0.0] * buckets
    for position, (value, sign) in enumerate(zip(values.reshape(-1).tolist(), make_signs(values.size).tolist())):
        result[position % buckets] += value * sign
    return np.array(result)


def test_bucket_counts() -> None:
    sizes = [0, 1, 254 * 4096 - 1, 254 * 4096, 1 << 20, 1016 * 4096 - 1, 1016 * 4096, 1 << 30]
    assert [count_buckets(size) for size in sizes] == [127, 127, 127, 254, 254, 508, 1016, 1016]


SIGNS = (
    ("++++---++++-++++++++-----+-----+---+----++--++--+++++++-----++-+", 89.0),
    ("-+-+++++--++++---+++--++---+++-+-++++--+--+-+++-++----+-+-------", 83.0),
)


@pytest.mark.parametrize("which", [0, 1])
def test_signs_never_change(which: int) -> None:
    """Stored sketches are only comparable while r is the same: the first 64 of either sequence and its sum."""
    signs, period = repeated_signs(which), PERIODS[which]
    text, total = SIGNS[which]
    assert "".join("+" if sign > 0 else "-" for sign in signs[:64]) == text
    assert set(signs.tolist()) == {-1.0, 1.0}
    assert signs[:period].sum() == total
    assert np.array_equal(signs[period : 2 * period], signs[:period])


@pytest.mark.parametrize("size", [0, 1, 126, 127, 128, 5000, 65024, 70001, 600000, 1_100_000])
def test_against_the_definition(size: int) -> None:
    values = np.random.default_rng(size).integers(-1000, 1000, size).astype(np.float64)
    assert np.array_equal(sketch(values, F8), plain_sketch(values))


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 200_000), st.integers(0, 999), st.integers(-5, 5), st.integers(-5, 5))
def test_linear(size: int, seed: int, a: int, b: int) -> None:
    generator = np.random.default_rng(seed)
    x, y = (generator.integers(-(2**20), 2**20, size).astype(np.float64) for _ in range(2))
    # Integers below 2**53 add up exactly, so linearity is exact too.
    assert np.array_equal(sketch(a * x + b * y, F8), a * sketch(x, F8) + b * sketch(y, F8))


@settings(deadline=None)
@given(st.integers(0, 10), st.integers(1, 100_000))
def test_folding_is_the_sketch_with_fewer_buckets(seed: int, size: int) -> None:
    values = np.random.default_rng(seed).integers(-9, 9, size).astype(np.float64)
    signs = make_signs(size)
    for buckets in (127, 1):
        padded = np.zeros(-(-size // buckets) * buckets)
        padded[:size] = values * signs
        assert np.array_equal(fold(sketch(values, F8), buckets), padded.reshape(-1, buckets).sum(axis=0))


def test_folding_to_a_length_that_does_not_divide() -> None:
    with pytest.raises(ValueError, match="64 buckets cannot be folded to 48"):
        fold(np.zeros(64), 48)
    with pytest.raises(ValueError, match="cannot be folded"):
        relative_distance(np.zeros(64), np.zeros(48))


def round_to_bfloat16(x: Array) -> Array:
    words = x.astype(np.float32).view(np.uint32)
    rounded = (words + 0x7FFF + ((words >> 16) & 1)) & np.uint32(0xFFFF0000)
    return np.asarray(rounded.view(np.float32).astype(np.float64))


def change_rows(change: Callable[[Array], None]) -> Callable[[Array, np.random.Generator], Array]:
    def apply(x: Array, generator: np.random.Generator) -> Array:
        y = x.copy()
        change(y)
        return y

    return apply


def set_element(y: Array) -> None:
    y[717, 333] += 50


def set_row(y: Array) -> None:
    y[99] *= 1.5


CHANGES: dict[str, Callable[[Array, np.random.Generator], Array]] = {
    "noise 1e-6": lambda x, g: x * (1 + 1e-6 * g.standard_normal(x.shape)),
    "noise 1e-3": lambda x, g: x + 1e-3 * g.standard_normal(x.shape),
    "bf16 rounding": lambda x, g: round_to_bfloat16(x),
    "one row scaled": change_rows(set_row),
    "one element": change_rows(set_element),
    "all biased": lambda x, g: x + 1e-4,
    "scaled": lambda x, g: x * 1.001,
    "rows permuted": lambda x, g: x[g.permutation(x.shape[0])],
    "columns permuted": lambda x, g: x[:, g.permutation(x.shape[1])],
    "heads permuted": lambda x, g: x.reshape(-1, 8, 128)[:, ::-1].reshape(x.shape),
    "shifted by one token": lambda x, g: np.roll(x, 1, axis=0),
    "transposed": lambda x, g: x.T,
}


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("name", CHANGES)
def test_distance_is_true_within_ten_percent(name: str, seed: int) -> None:
    """k = 1016: one standard deviation of the ratio is about 3 %, and these seeds are fixed."""
    generator = np.random.default_rng(seed)
    x = generator.standard_normal((2048, 2048))
    y = np.ascontiguousarray(CHANGES[name](x, generator))
    truth = float(np.linalg.norm(x - y) / np.linalg.norm(x))
    assert relative_distance(sketch(x, F8), sketch(y, F8)) == pytest.approx(truth, rel=0.10)


@pytest.mark.parametrize("width", [1000, 1001, 1023, 768 + 1])
@pytest.mark.parametrize("column", [0, 11, 500])
def test_one_biased_column(width: int, column: int) -> None:
    x = np.random.default_rng(0).standard_normal((2048, width))
    y = x.copy()
    y[:, column] += 0.5
    truth = float(np.linalg.norm(x - y) / np.linalg.norm(x))
    assert relative_distance(sketch(x, F8), sketch(y, F8)) == pytest.approx(truth, rel=0.15)


def test_a_column_that_falls_into_one_bucket_is_right_on_average_only() -> None:
    """The documented blind spot, by its own bias: the column's part of the sketch, over all columns."""
    ones = np.zeros((2048, 1016))
    shares = []
    for column in range(0, 508, 4):
        ones[:, column] = 1
        shares.append(float(np.linalg.norm(sketch(ones, F8))) / math.sqrt(2048))
        ones[:, column] = 0
    assert math.sqrt(sum(share**2 for share in shares) / len(shares)) == pytest.approx(1, rel=0.25)
    assert sum(share < 1 / 8 for share in shares) < 0.2 * len(shares)


@pytest.mark.parametrize(("rows", "width"), [(4096, 1024), (1024, 4096), (2048, 768), (1024, 3072), (2048, 1000)])
def test_a_column_of_a_common_width_is_seen_at_its_size(rows: int, width: int) -> None:
    """127 buckets share a column: one standard deviation is 6 %, the columns are fixed."""
    ones = np.zeros((rows, width), np.float32)
    for column in range(0, width, width // 7):
        ones[:, column] = 1
        assert np.linalg.norm(sketch(ones, F4)) == pytest.approx(math.sqrt(rows), rel=0.2)
        ones[:, column] = 0


@pytest.mark.parametrize("exponent", range(12, 24))
def test_a_constant_is_seen_at_its_size(exponent: int) -> None:
    ones = np.ones(1 << exponent, np.float32)
    assert np.linalg.norm(sketch(ones, F4)) == pytest.approx(2 ** (exponent / 2), rel=0.1)


@pytest.mark.parametrize("rows", [1, 512, 4096])
def test_activations_with_structure(rows: int) -> None:
    """Positive values with strong columns, as after GELU, and an error that follows them."""
    generator = np.random.default_rng(rows)
    x = np.abs(generator.standard_normal((rows, 768))) * np.exp(generator.standard_normal(768))
    y = x * (1 + 1e-3 * np.sign(generator.standard_normal(768)))
    truth = float(np.linalg.norm(x - y) / np.linalg.norm(x))
    # The resolution of k buckets: three standard deviations of either norm.
    margin = 6 / math.sqrt(2 * count_buckets(x.size))
    assert relative_distance(sketch(x, F8), sketch(y, F8)) == pytest.approx(truth, rel=min(margin, 0.5))


def test_sketches_of_different_lengths_compare() -> None:
    x = np.random.default_rng(0).standard_normal(1 << 18)
    whole = sketch(x, F8)
    assert relative_distance(whole, fold(sketch(x * 1.01, F8), 127)) == pytest.approx(0.01, rel=1e-9)


def test_equal_tensors_have_equal_sketches_and_distance_zero() -> None:
    x = np.random.default_rng(0).standard_normal((317, 511)).astype(np.float32)
    strided = np.asfortranarray(x)
    assert sketch(strided, F4).tobytes() == sketch(x, F4).tobytes()
    assert relative_distance(sketch(x, F4), sketch(strided, F4)) == 0.0


def test_floor_of_rounding() -> None:
    """The documented floor: an exact difference of 1e-12 is still seen, within a few percent."""
    x = np.random.default_rng(0).standard_normal(1 << 20)
    assert relative_distance(sketch(x, F8), sketch(x * (1 + 1e-12), F8)) == pytest.approx(1e-12, rel=0.1)


def test_zeros() -> None:
    zero, one = sketch(np.zeros(100), F8), sketch(np.ones(100), F8)
    assert relative_distance(zero, zero) == 0.0
    assert relative_distance(zero, one) == math.inf
    assert relative_distance(one, zero) == 1.0
    assert relative_distance(sketch(np.zeros(0), F8), zero) == 0.0


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_nonfinite_values_count_as_zero(bad: float) -> None:
    x = np.random.default_rng(0).standard_normal(70_000).astype(np.float32)
    y = x.copy()
    x[[5, 69_999]], y[[5, 69_999]] = bad, 0
    assert sketch(x, F4).tobytes() == sketch(y, F4).tobytes()
    both = np.array([math.inf, -math.inf, 1.0])
    assert sketch(both, F8).tobytes() == sketch(np.array([0, 0, 1.0]), F8).tobytes()


def test_other_kinds_of_numbers() -> None:
    integers = np.arange(-500, 500)
    assert np.array_equal(sketch(integers, dtype_of("int64")), sketch(integers.astype(np.float64), F8))
    flags = integers % 3 == 0
    assert np.array_equal(sketch(flags, dtype_of("bool")), sketch(flags.astype(np.float64), F8))
    pairs = np.random.default_rng(0).standard_normal(5000).view(np.complex128)
    assert np.array_equal(sketch(pairs, dtype_of("complex128")), sketch(pairs.view(np.float64), F8))
    words = np.array([0x3F80, 0xC000], np.uint16)
    assert np.array_equal(sketch(words, dtype_of("bfloat16")), sketch(np.array([1.0, -2.0]), F8))
