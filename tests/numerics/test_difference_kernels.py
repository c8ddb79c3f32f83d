"""Every difference kernel against plain float64 NumPy, and against the others."""

from __future__ import annotations

import math
import tracemalloc
from importlib.util import find_spec

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from precision_align.core.dtypes import DTYPES, widen
from precision_align.core.errors import Unavailable, UsageError
from precision_align.numerics import kernels
from precision_align.numerics.blocked import BLOCK, add_arrays
from precision_align.numerics.compiled import load_compiled
from precision_align.numerics.kernels import choose_kernel, kernel_name
from precision_align.numerics.metrics import measure, measure_words, tally_words
from precision_align.numerics.pairs import SPAN
from precision_align.numerics.tallies import COUNTS, NUMBERS, SUMS, Tally

needs_compiler = pytest.mark.skipif(load_compiled() is None, reason="no C compiler here")
needs_numba = pytest.mark.skipif(find_spec("numba") is None, reason="numba is not installed")
ALL = ["numpy", pytest.param("compiled", marks=needs_compiler), pytest.param("numba", marks=needs_numba)]
FAST = ALL[1:]

SPECIAL = [math.nan, -math.nan, math.inf, -math.inf, 0.0, -0.0, 1e-45, -1e-40, 1e-39, 3.4e38, -3.4e38, 65504.0, 6e-8]
FLOATS = [name for name, row in DTYPES.items() if row.kind == "float"]
NARROW = ["float32", "bfloat16", "float16"]
OTHERS = [name for name, row in DTYPES.items() if row.kind != "float"]


def plain(actual, expected):
    """The definitions of the tally's fields on whole float64 arrays."""
    a, b = np.asarray(actual, np.float64), np.asarray(expected, np.float64)
    keep = np.isfinite(a) & np.isfinite(b)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    found = {"count": keep.sum(), "unequal": (~same).sum(), "nonfinite": (~same & ~keep).sum()}
    for side, values in (("actual", a), ("expected", b)):
        found[f"nan_{side}"], found[f"inf_{side}"] = np.isnan(values).sum(), np.isinf(values).sum()
    size = np.where(keep, np.abs(np.where(keep, a, 0) - np.where(keep, b, 0)), -1.0)
    found["worst"] = size.argmax() if (size > 0).any() else 0
    a, b = a[keep], b[keep]
    error, size, base = a - b, np.abs(a - b), np.abs(b)
    found["max_abs"] = size.max(initial=0.0)
    found["max_rel"] = (size[base > 0] / base[base > 0]).max(initial=0.0)
    found["low"], found["high"] = b.min(initial=math.inf), b.max(initial=-math.inf)
    found.update(absolute=size.sum(), square=(size**2).sum(), signed_sum=error.sum())
    found.update(actual=(a * a).sum(), expected=(b * b).sum(), cross=(a * b).sum())
    return found


def room(wanted, name):
    """1e-12 of the sum of magnitudes: signed sums cancel."""
    scale = {"signed_sum": "absolute", "cross": "actual"}.get(name, name)
    return 1e-12 * max(abs(wanted[scale]), math.sqrt(wanted["actual"] * wanted["expected"]) if name == "cross" else 0)


def check(tally, wanted, where=""):
    for name in COUNTS + NUMBERS:
        assert getattr(tally, name) == wanted[name], (name, where)
    for name in SUMS:
        assert abs(getattr(tally, name) - wanted[name]) <= room(wanted, name), (name, where)


def as_dict(tally):
    return {name: getattr(tally, name) for name in COUNTS + NUMBERS + SUMS}


def narrow_words(values, dtype):
    """Float32 values as words of a narrow type (bfloat16 by truncation: any bits will do)."""
    values = np.asarray(values, np.float32)
    if dtype == "bfloat16":
        return (values.view(np.uint32) >> 16).astype(np.uint16)
    with np.errstate(over="ignore", under="ignore"):
        return values.astype(dtype)


def make_pair(rng, size, dtype, special=0.0):
    """Two near-equal tensors; ``special``: the share of values replaced on either side."""
    expected = rng.standard_normal(size).astype(np.float32)
    actual = expected * (1 + 1e-3 * rng.standard_normal(size).astype(np.float32))
    for values in (actual, expected):
        hit = rng.random(size) < special
        values[hit] = rng.choice(np.array(SPECIAL, np.float32), int(hit.sum()))
    return narrow_words(actual, dtype), narrow_words(expected, dtype)


def random_words(rng, size, dtype):
    """Any bits; float64 only where squares are finite."""
    word = np.dtype(DTYPES[dtype].word)
    if word == np.bool_:
        return rng.integers(0, 2, size).astype(np.bool_)
    words = rng.integers(0, 256, size * word.itemsize, dtype=np.uint8).view(word)
    if dtype in ("float64", "complex128"):
        parts = rng.standard_normal(size * (word.itemsize // 8)) * 2.0 ** rng.integers(-300, 300, 1)
        parts[rng.random(parts.size) < 0.05] = rng.choice([math.nan, math.inf, -math.inf, 0.0, -0.0])
        return parts.view(word)
    return words


def tally_of(kernel, actual, expected, dtype, **options):
    tally, unit = tally_words(actual, expected, DTYPES[dtype], DTYPES[dtype], kernel=choose_kernel(kernel), **options)
    assert unit == 1
    return tally


@pytest.mark.parametrize("kernel", FAST)
@pytest.mark.parametrize("last", [None, math.nan, -math.inf, -0.0])
def test_every_length_of_float32(kernel, last):
    rng = np.random.default_rng(1)
    actual, expected = make_pair(rng, 4097, "float32")
    run = choose_kernel(kernel)
    for size in range(4098):
        a, b = actual[:size], expected[:size]
        if last is not None and size:
            a, b = a.copy(), b.copy()
            (a if size % 2 else b)[-1] = last
        tally = Tally.empty()
        run.add(tally, a, b, "float32")
        check(tally, plain(a, b), size)


@needs_compiler
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_every_length_of_sixteen_bits(dtype):
    rng = np.random.default_rng(2)
    actual, expected = make_pair(rng, 4097, dtype)
    numbers = [widen(words, DTYPES[dtype]).astype(np.float64) for words in (actual, expected)]
    run = choose_kernel("compiled")
    for size in range(4098):
        tally = Tally.empty()
        run.add(tally, actual[:size], expected[:size], dtype)
        check(tally, plain(numbers[0][:size], numbers[1][:size]), size)


@pytest.mark.parametrize("kernel", ALL)
@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("size", [1, 2, 15, 16, 17, 100, 4095, 4096, 4097, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 5])
@pytest.mark.parametrize("special", [0.0, 0.01, 0.5])
def test_special_values_anywhere(kernel, dtype, size, special):
    actual, expected = make_pair(np.random.default_rng(size), size, dtype, special)
    tally = tally_of(kernel, actual, expected, dtype)
    row = DTYPES[dtype]
    check(tally, plain(widen(actual, row), widen(expected, row)))


@pytest.mark.parametrize("kernel", FAST)
@pytest.mark.parametrize("dtype", FLOATS + OTHERS)
@pytest.mark.parametrize("size", [0, 1, 7, 63, 64, 65, 4097, 100_003])
def test_kernels_agree_on_any_bits(kernel, dtype, size):
    rng = np.random.default_rng(size)
    actual = random_words(rng, size, dtype)
    expected = actual.copy()
    hit = rng.random(size) < 0.7
    expected[hit] = random_words(rng, size, dtype)[hit]
    wanted = as_dict(tally_of("numpy", actual, expected, dtype))
    check(tally_of(kernel, actual, expected, dtype), wanted)


@pytest.mark.parametrize("kernel", ALL)
@pytest.mark.parametrize("dtype", ["bool", "uint8", "int8", "int16", "uint16", "int32", "uint32", "qint8", "qint32"])
def test_integers_against_plain(kernel, dtype):
    rng = np.random.default_rng(3)
    for size in (1, 5, 64, 4097):
        pair = random_words(rng, size, dtype), random_words(rng, size, dtype)
        check(tally_of(kernel, *pair, dtype), plain(*pair), size)


@pytest.mark.parametrize("kernel", ALL)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", [*NARROW, "float64"])
@pytest.mark.parametrize("side", [0, 1])
def test_one_bad_value_at_any_place(kernel, value, dtype, side):
    for size in (1, 17, 4096, 4099):
        for place in {0, 1, size // 2, size - 2, size - 1} & set(range(size)):
            pair = [np.ones(size, np.float32), np.ones(size, np.float32)]
            pair[side][place] = value
            words = [item.astype(np.float64) if dtype == "float64" else narrow_words(item, dtype) for item in pair]
            tally = tally_of(kernel, *words, dtype)
            assert (tally.nonfinite, tally.unequal, tally.count) == (1, 1, size - 1), (size, place)


@pytest.mark.parametrize("kernel", ALL)
@pytest.mark.parametrize("dtype", [*NARROW, "float64", "int16", "int32", "bool"])
def test_buffers_at_any_address(kernel, dtype):
    rng = np.random.default_rng(5)
    word = np.dtype(DTYPES[dtype].word)
    actual, expected = random_words(rng, 1001, dtype), random_words(rng, 1001, dtype)
    wanted = as_dict(tally_of("numpy", actual, expected, dtype))
    for offset in range(1, 9):
        moved = []
        for words, shift in ((actual, offset), (expected, 9 - offset)):
            memory = np.zeros(words.nbytes + 16, np.uint8)
            memory[shift : shift + words.nbytes] = words.view(np.uint8)
            moved.append(memory[shift : shift + words.nbytes].view(word))
        check(tally_of(kernel, *moved, dtype), wanted, offset)
        if kernel == "compiled":  # also where nothing makes a copy first
            tally = Tally.empty()
            choose_kernel(kernel).add(tally, *moved, dtype)
            check(tally, wanted, offset)


@pytest.mark.parametrize("kernel", ALL)
def test_nothing_beyond_the_end_is_read(kernel):
    """Neighbours that would change everything stand right behind the last element."""
    for size in (1, 3, 15, 31, 33, 4097):
        memory = np.full((2, size + 64), np.nan, np.float32)
        memory[:, :size] = 1.0
        tally = tally_of(kernel, memory[0, :size], memory[1, :size], "float32")
        assert (tally.count, tally.nan_actual, tally.unequal) == (size, 0, 0)


@pytest.mark.parametrize("kernel", ALL)
@pytest.mark.parametrize("factor", [1.01, -1.0, 3.0, 0.0, 1e30])
def test_scaled_tensors(kernel, factor):
    """Every relative error is nearly the same: the float32 filter before the exact division sees ties only."""
    expected = np.random.default_rng(6).standard_normal(20_000).astype(np.float32)
    actual = expected * np.float32(factor)
    check(tally_of(kernel, actual, expected, "float32"), plain(actual, expected))


@pytest.mark.parametrize("kernel", ALL)
def test_growing_errors_and_zeros(kernel):
    expected = np.arange(20_000, dtype=np.float32) // 2
    actual = expected * np.linspace(1, 2, expected.size, dtype=np.float32)
    expected[::3] = 0
    check(tally_of(kernel, actual, expected, "float32"), plain(actual, expected))
    actual[expected == 0] = 0
    check(tally_of(kernel, actual, expected, "float32"), plain(actual, expected))


@pytest.mark.parametrize("kernel", ALL)
@pytest.mark.parametrize("scale", [1e-310, 1e-200, 1e200, 1.7e308])
def test_ends_of_float64(kernel, scale):
    rng = np.random.default_rng(7)
    base = rng.uniform(0.25, 1, 5000)
    actual, expected = base * (1 + 1e-3 * rng.standard_normal(5000)).clip(0.99, 1), base
    row = DTYPES["float64"]
    near = measure_words(actual, expected, row, kernel=choose_kernel(kernel))
    far = measure_words(actual * scale, expected * scale, row, kernel=choose_kernel(kernel))
    for name in ("rel_l2", "over_max", "one_minus_cosine", "psnr"):
        assert getattr(far, name) == pytest.approx(getattr(near, name), rel=1e-6 if scale > 1e-300 else 1e-3), name
    assert far.rmse == pytest.approx(near.rmse * scale, rel=1e-3)


@pytest.mark.parametrize("kernel", ALL)
def test_threads_and_spans_change_nothing(kernel):
    rng = np.random.default_rng(8)
    actual, expected = make_pair(rng, 2 * SPAN + 4097, "float32", 1e-5)
    found = [as_dict(tally_of(kernel, actual, expected, "float32", threads=count)) for count in (1, 2, 3)]
    assert found[0] == found[1] == found[2]
    check(tally_of(kernel, actual, expected, "float32"), plain(actual, expected))


@pytest.mark.parametrize("kernel", ALL)
def test_worst_place_in_a_later_span(kernel):
    for place in (0, SPAN - 1, SPAN, 2 * SPAN + 9):
        expected = np.zeros(2 * SPAN + 10, np.float32)
        actual = expected.copy()
        actual[place] = 2.0
        tally = tally_of(kernel, actual, expected, "float32")
        assert (tally.worst, tally.max_abs, tally.unequal) == (place, 2.0, 1)


def test_every_element_is_released_once():
    seen = np.zeros(2 * SPAN + 77, np.int8)

    def release(start, stop):
        seen[start:stop] += 1

    words = np.zeros(seen.size, np.float16)
    measure_words(words, words, DTYPES["float16"], release=release, threads=2)
    assert (seen == 1).all()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "int64", "complex64", "float8_e5m2"])
def test_numpy_kernel_needs_little_memory(dtype):
    size = 3 << 20
    words = np.zeros(size, DTYPES[dtype].word)
    add_arrays(Tally.empty(), words[:1], words[:1])  # its buffers exist from here on
    tracemalloc.start()
    measure_words(words, words, DTYPES[dtype], kernel=choose_kernel("numpy"))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 << 20


@pytest.mark.parametrize("kernel", ALL)
@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("float32", "bfloat16"),
        ("float64", "float16"),
        ("float8_e4m3fn", "float32"),
        ("int64", "int32"),
        ("bool", "int8"),
    ],
)
def test_two_dtypes(kernel, left, right):
    rng = np.random.default_rng(9)
    pair = random_words(rng, 70_000, left), random_words(rng, 70_000, right)
    numbers = [widen(words, DTYPES[name]) for words, name in zip(pair, (left, right))]
    found = measure_words(*pair, DTYPES[left], DTYPES[right], kernel=choose_kernel(kernel))
    with np.errstate(all="ignore"):
        wanted = plain(*numbers)
    # Of integers the difference is exact, of their float64 forms it is not.
    assert found.max_abs == pytest.approx(wanted["max_abs"], rel=1e-15)
    assert found.worst_index == wanted["worst"]
    assert found.mismatched == wanted["unequal"] / 70_000


@pytest.mark.parametrize("kernel", ALL)
@pytest.mark.parametrize("words", [np.ones((64, 66), np.float32).T, np.ones(200, ">f4")[::2], np.float32(1.0)])
def test_any_layout(kernel, words):
    words = np.asarray(words)
    other = np.asarray(words.astype(np.float32) + np.float32(1), np.float32)  # NumPy 1 widens 0-d sums
    tally = tally_of(kernel, words, other, "float32")
    assert (tally.count, tally.max_abs, tally.low) == (words.size, 1.0, 2.0)


@pytest.mark.parametrize("kernel", ALL)
@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.lists(st.tuples(st.floats(width=32), st.floats(width=32)), max_size=70))
def test_any_float32(kernel, pairs):
    values = np.array(pairs, np.float32).reshape(-1, 2)
    actual, expected = np.ascontiguousarray(values[:, 0]), np.ascontiguousarray(values[:, 1])
    check(tally_of(kernel, actual, expected, "float32"), plain(actual, expected))


@pytest.mark.parametrize("dtype", ["longdouble", "longlong", ">f8", ">i2", "clongdouble"])
def test_types_that_the_table_lacks(dtype):
    found = measure(np.array([1, 2, 3], dtype), np.array([1, 2, 5], dtype))
    assert (found.max_abs, found.worst_index) == (2.0, 2)


@pytest.mark.parametrize("values", [["a"], [None], np.array(["2020-01-01"], "M8[D]")])
def test_what_is_no_number_is_refused(values):
    with pytest.raises(TypeError, match="not compared"):
        measure(np.array(values), np.array(values))


def test_choice_by_environment(monkeypatch):
    monkeypatch.setenv("PRECISION_ALIGN_KERNEL", "numpy")
    assert kernel_name() == "numpy"
    monkeypatch.setenv("PRECISION_ALIGN_KERNEL", "fastest")
    with pytest.raises(UsageError, match="compiled, numba, numpy"):
        kernel_name()
    monkeypatch.setenv("PRECISION_ALIGN_KERNEL", "")
    assert kernel_name() == kernels._find_fastest().name


def test_a_missing_kernel_is_an_error_only_where_it_was_asked_for(monkeypatch):
    monkeypatch.setattr(kernels, "_load", {"numpy": kernels.BlockedKernel()}.get)
    for name in ("compiled", "numba"):
        with pytest.raises(Unavailable, match=name):
            choose_kernel(name)
    kernels._find_fastest.cache_clear()
    try:
        assert choose_kernel().name == "numpy"
    finally:
        kernels._find_fastest.cache_clear()
