"""The compiled statistics and folds against NumPy: every length, every place of a NaN, every layout."""

from __future__ import annotations

import math
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from precision_align.core.dtypes import Array, dtype_of, widen
from precision_align.core.records import Statistics
from precision_align.numerics.folding import BLOCK_BYTES, Folder
from precision_align.numerics.statistics import summarize
from precision_align.numerics.summaries import FORMS, CompiledSummaries, load_summaries


@pytest.fixture
def compiled() -> CompiledSummaries:
    found = load_summaries()
    if found is None:
        pytest.skip("there is no C compiler here")
    return found


def make_words(form: str, size: int, seed: int, *, finite: bool) -> Array:
    """Random bits of a type: normal, subnormal and zero; NaN and infinities only where not ``finite``."""
    dtype = dtype_of(form)
    bits = np.random.default_rng(seed).integers(0, 256, size * dtype.itemsize, dtype=np.uint8)
    words = bits.view(np.dtype(dtype.word))
    values = widen(words, dtype)
    if finite:
        words[~np.isfinite(values)] = 0
    if form == "float64":  # summarize() leaves tensors of huge numbers to NumPy
        words[np.isfinite(values) & (np.abs(values) > 1e100)] = 1
    words[::7] = 0
    return words


def plain_statistics(words: Array, form: str) -> Statistics:
    dtype = dtype_of(form)
    with np.errstate(all="ignore"):  # signalling NaNs
        values = widen(words, dtype).astype(np.float64)
    kept = values[np.isfinite(values)]
    counts = (
        values.size,
        int(np.isnan(values).sum()),
        int(np.isinf(values).sum()),
        int((kept == 0).sum()),
        int(((kept != 0) & (np.abs(kept) < dtype.smallest)).sum()),
    )
    if not kept.size:
        return Statistics(*counts, math.nan, math.nan, math.nan, math.nan)
    with np.errstate(all="ignore"):
        l2 = math.sqrt(math.fsum(kept**2))
    return Statistics(*counts, kept.min(), kept.max(), math.fsum(kept) / kept.size, l2)


def assert_same(found: Statistics, expected: Statistics) -> None:
    def exact(given: Statistics) -> list[float]:
        return [given.numel, given.nan, given.inf, given.zero, given.subnormal, given.minimum, given.maximum]

    assert exact(found) == pytest.approx(exact(expected), rel=0, abs=0, nan_ok=True)
    largest = max(abs(expected.minimum), abs(expected.maximum))
    assert found.mean == pytest.approx(expected.mean, rel=1e-9, abs=1e-13 * largest, nan_ok=True)
    assert found.l2 == pytest.approx(expected.l2, rel=1e-12, nan_ok=True)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("finite", [True, False])
def test_all_lengths(compiled: CompiledSummaries, form: str, finite: bool) -> None:
    for size in [*range(70), 255, 1000, 4095, 4096, 4097, 8191, 12345]:
        words = make_words(form, size, size, finite=finite)
        assert_same(compiled.summarize([words], form), plain_statistics(words, form))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_nonfinite_value_anywhere(compiled: CompiledSummaries, form: str, bad: float) -> None:
    for size in (1, 16, 33, 4097):
        for position in {0, size // 2, size - 1}:
            values = np.ones(size, np.float32)
            values[position] = bad
            words = values.view(np.uint32) >> 16 if form == "bfloat16" else values
            words = words.astype(dtype_of(form).word)
            found = compiled.summarize([words], form)
            assert (found.nan, found.inf) == ((1, 0) if math.isnan(bad) else (0, 1))
            assert_same(found, plain_statistics(words, form))


@pytest.mark.parametrize("form", FORMS)
def test_extremes_of_one_sign_and_of_both_zeros(compiled: CompiledSummaries, form: str) -> None:
    word = np.dtype(dtype_of(form).word)
    sign = 1 << 8 * word.itemsize - 1
    words = make_words(form, 4097, 3, finite=True).view(f"u{word.itemsize}")
    words[words % sign == 0] = 1  # nothing is zero
    for signed in (words | sign, words & (sign - 1)):
        assert_same(compiled.summarize([signed.view(word)], form), plain_statistics(signed.view(word), form))
    for zeros in ([0] * 63 + [sign], [sign] * 63 + [0], [sign] * 64, [0] * 64):
        found = compiled.summarize([np.array(zeros, words.dtype).view(word)], form)
        extremes = math.copysign(1, found.minimum), math.copysign(1, found.maximum)
        assert extremes == (-1 if sign in zeros else 1, 1 if 0 in zeros else -1)


def test_huge_and_tiny_doubles_are_left_to_numpy() -> None:
    for scale in (1e200, 1e-200):
        found = summarize(np.array([3.0, 4.0]) * scale, dtype_of("float64"))
        assert found.l2 == pytest.approx(5 * scale, rel=1e-14)


def test_pieces_go_on_where_the_last_stopped(compiled: CompiledSummaries) -> None:
    words = make_words("float32", 30_000, 1, finite=True)
    pieces = [words[start : start + 8192] for start in range(0, words.size, 8192)]
    assert compiled.summarize(pieces, "float32") == compiled.summarize([words], "float32")


@settings(deadline=None, max_examples=40)
@given(st.integers(0, BLOCK_BYTES), st.integers(0, 99), st.integers(0, 7))
def test_the_compiled_fold_is_the_same_bit_for_bit(size: int, seed: int, shift: int) -> None:
    """At any length and alignment."""
    data = np.random.default_rng(seed).integers(0, 256, size + shift, dtype=np.uint8)[shift:]
    assert np.array_equal(Folder().fold(data), Folder(compiled=False).fold(data))


def test_another_kernel_switches_it_off() -> None:
    code = "from precision_align.numerics.summaries import load_summaries; print(load_summaries())"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PRECISION_ALIGN_KERNEL": "numpy", "PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "None"
