"""Statistics against the plain definition in exact or float64 arithmetic."""

from __future__ import annotations

import math
import tracemalloc
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from precision_align.core.dtypes import DTYPES, Array, dtype_of, widen
from precision_align.core.records import Statistics
from precision_align.numerics import statistics
from precision_align.numerics.statistics import BLOCK, iterate_blocks, summarize

float_arrays = hnp.arrays(
    st.sampled_from([np.float64, np.float32, np.float16]),
    hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=7),
    elements=st.floats(width=16),
)


def name_of(values: Array) -> str:
    return str(values.dtype)


def check_against_exact(found: Statistics, values: Array, smallest: float) -> None:
    numbers = [float(value) for value in values.reshape(-1)]
    finite = [value for value in numbers if math.isfinite(value)]
    assert found.numel == len(numbers)
    assert found.nan == sum(map(math.isnan, numbers))
    assert found.inf == sum(map(math.isinf, numbers))
    assert found.zero == sum(value == 0 for value in numbers)
    assert found.subnormal == sum(0 < abs(value) < smallest for value in numbers)
    if not finite:
        assert all(math.isnan(value) for value in (found.minimum, found.maximum, found.mean, found.l2))
        return
    assert (found.minimum, found.maximum) == (min(finite), max(finite))
    mean = sum(map(Fraction, finite)) / len(finite)
    # Rounding relative to the summands, and the spacing of subnormal float64 numbers.
    scale = sum(abs(Fraction(value)) for value in finite) / len(finite)
    spacing = Fraction(2) ** -1074
    assert abs(Fraction(found.mean) - mean) <= scale * Fraction(2) ** -48 + spacing
    square = sum(Fraction(value) ** 2 for value in finite)
    if math.isfinite(found.l2):
        low, high = (Fraction(found.l2) * (1 + sign * Fraction(2) ** -45) + sign * spacing for sign in (-1, 1))
        assert max(low, Fraction(0)) ** 2 <= square <= high**2
    else:
        assert square > Fraction(2) ** 2047


@settings(deadline=None)
@given(float_arrays)
def test_against_exact_arithmetic(values: Array) -> None:
    row = dtype_of(name_of(values))
    check_against_exact(summarize(values, row), values, row.smallest)


@settings(deadline=None)
@given(hnp.arrays(np.float64, st.integers(0, 9), elements=st.floats(allow_nan=True, allow_infinity=True)))
def test_the_whole_range_of_float64(values: Array) -> None:
    """Sums and squares that overflow or vanish in plain float64 arithmetic."""
    row = dtype_of("float64")
    found = summarize(values, row)
    finite = [value for value in values.tolist() if math.isfinite(value)]
    check_against_exact(found, values, row.smallest)
    if finite and max(map(abs, finite)) < 1e307:
        assert math.isfinite(found.l2)


@pytest.mark.parametrize(
    ("values", "mean", "l2"),
    [
        ([1.7e308, 1.7e308], 1.7e308, math.inf),
        ([1e200, 1e200], 1e200, math.sqrt(2) * 1e200),
        ([1e-200, 1e-200], 1e-200, math.sqrt(2) * 1e-200),
        ([5e-324], 5e-324, 5e-324),
        ([-1.7e308, 1.7e308], 0.0, math.inf),
    ],
)
def test_extreme_values(values: list[float], mean: float, l2: float) -> None:
    found = summarize(np.array(values), dtype_of("float64"))
    assert found.mean == pytest.approx(mean, rel=1e-14)
    assert found.l2 == pytest.approx(l2, rel=1e-14)


@settings(max_examples=25, deadline=None)
@given(st.sampled_from(sorted(DTYPES)), st.integers(0, 300), st.integers(0, 2**32 - 1))
def test_random_bits_of_every_dtype(name: str, size: int, seed: int) -> None:
    row = dtype_of(name)
    high = 2 if name == "bool" else 256
    raw = np.random.default_rng(seed).integers(0, high, size * row.itemsize, dtype=np.uint8)
    words = raw.view(row.word)
    numbers = widen(words, row)
    with np.errstate(all="ignore"):
        if row.kind == "complex":
            wide = numbers.astype(np.complex128)
            numbers = np.where(np.isnan(wide), np.nan, np.abs(wide))
        check_against_exact(summarize(words, row), numbers.astype(np.float64), row.smallest if row.is_floating else 0.0)


def test_a_complex_value_with_a_nan_part_counts_as_nan() -> None:
    values = np.array([3 + 4j, complex(math.inf, math.nan), complex(0, math.inf), 0], np.complex64)
    found = summarize(values, dtype_of("complex64"))
    assert (found.nan, found.inf, found.zero) == (1, 1, 1)
    assert (found.minimum, found.maximum, found.l2) == (0.0, 5.0, 5.0)


def test_integers_count_as_numbers() -> None:
    found = summarize(np.array([-3, 0, 2**62], np.int64), dtype_of("int64"))
    assert found == Statistics(3, 0, 0, 1, 0, -3.0, 2.0**62, (2.0**62 - 3) / 3, 2.0**62)
    assert summarize(np.array([True, False, True]), dtype_of("bool")).mean == pytest.approx(2 / 3)


@pytest.mark.parametrize("size", [BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 5])
@pytest.mark.parametrize("place", [0, -1])
def test_no_element_at_a_blocks_edge_is_lost(size: int, place: int) -> None:
    values = np.ones(size, np.float32)
    values[place] = np.nan
    assert summarize(values, dtype_of("float32")).nan == 1
    values[place] = 9
    found = summarize(values, dtype_of("float32"))
    assert (found.maximum, found.mean) == (9.0, (size + 8) / size)
    assert found.l2 == pytest.approx(math.sqrt(size + 80), rel=1e-14)


def test_any_memory_layout_gives_the_same() -> None:
    values = np.random.default_rng(0).standard_normal((300, 401)).astype(np.float32)
    for view in (values.T, values[::-3, ::2], np.broadcast_to(values[:1], (500, 401))):
        whole = summarize(np.ascontiguousarray(view), dtype_of("float32"))
        assert summarize(view, dtype_of("float32")) == whole


def test_float32_sums_do_not_drift() -> None:
    """A running float32 sum of this stops at 2**24."""
    values = np.ones((1 << 24) + 1000, np.float32)
    found = summarize(values, dtype_of("float32"))
    assert found.mean == 1.0
    assert found.l2 == math.sqrt(values.size)


@pytest.mark.parametrize("name", ["float32", "bfloat16", "complex64", "float8_e4m3fn", "int64"])
def test_extra_memory_does_not_grow_with_the_tensor(name: str) -> None:
    row = dtype_of(name)
    words = np.ones((32 << 20) // row.itemsize, row.word)
    tracemalloc.start()
    try:
        summarize(words, row)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 6 << 20


def test_blocks_follow_c_order() -> None:
    values = np.arange(60).reshape(3, 4, 5).transpose(2, 0, 1)
    joined = np.concatenate(list(iterate_blocks(values, 7)))
    assert joined.tolist() == values.reshape(-1).tolist()
    assert list(iterate_blocks(np.zeros(0))) == []
    assert np.shares_memory(next(iterate_blocks(np.arange(9))), np.arange(9)) is False
    base = np.arange(9)
    assert np.shares_memory(next(iterate_blocks(base)), base)


def test_blocks_need_no_blas(monkeypatch: pytest.MonkeyPatch) -> None:
    """A threaded dot product would make the numbers depend on the machine's core count."""

    def refuse(*args: object) -> None:
        raise AssertionError("np.dot was called")

    monkeypatch.setattr(statistics.np, "dot", refuse)
    assert summarize(np.ones(100), dtype_of("float64")).l2 == 10.0
