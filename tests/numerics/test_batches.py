"""Many tensors in one compiled call: the same hash, statistics and sketch as one by one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from precision_align.core.dtypes import DTYPES, Array, dtype_of
from precision_align.core.records import Statistics
from precision_align.numerics.batches import Lying, summarize_batch
from precision_align.numerics.sketches import sketch
from precision_align.numerics.statistics import summarize
from precision_align.numerics.summaries import FORMS, load_summaries
from precision_align.storage.hashing import digest_words

# Around the blocks of the hash (128, 8192, 256 KiB), of the statistics (4096) and of the sketch (65024), in elements.
SIZES = (0, 1, 2, 15, 31, 32, 33, 127, 128, 129, 1023, 2048, 2049, 4097, 65023, 65024, 65025, 131073, 600_001)

pytestmark = pytest.mark.skipif(load_summaries() is None, reason="there is no C compiler here")


def random_words(name: str, size: int, seed: int) -> Array:
    row = dtype_of(name)
    bits = np.random.default_rng(seed).integers(0, 256, size * row.itemsize, dtype=np.uint8)
    words = bits.view(np.dtype(row.word))
    words[::5] = 0
    return words % 2 == 1 if name == "bool" else words


def lie(words: Array, name: str, *, sketched: bool = False) -> Lying:
    return words.__array_interface__["data"][0], words.nbytes, name, sketched


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("scale", [None, 1.0], ids=["random bits", "ordinary"])
def test_statistics_hash_and_sketch_are_those_of_single_tensors(name, scale):
    tensors = [random_words(name, size, size) for size in SIZES]
    if scale is not None and name != "bfloat16":
        generator = np.random.default_rng(1)
        tensors = [generator.standard_normal(size).astype(dtype_of(name).word) for size in SIZES]
    found = summarize_batch([lie(words, name, sketched=True) for words in tensors])
    for words, digest, values, complete, one in zip(tensors, *found, strict=True):
        assert digest.tobytes() == digest_words(words)
        np.testing.assert_array_equal(one, sketch(words, dtype_of(name)))
        if complete:
            alone, together = vars(summarize(words, dtype_of(name))), vars(Statistics(*values.item()))
            np.testing.assert_equal(together, alone)
        else:
            assert name == "float64"


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(sorted(DTYPES)), st.integers(0, 3000), st.integers(0, 99)), min_size=1))
def test_any_mixture_of_dtypes_keeps_its_order(wanted):
    tensors = [(name, random_words(name, size, seed)) for name, size, seed in wanted]
    found = summarize_batch([lie(words, name) for name, words in tensors])
    assert [digest.tobytes() for digest in found.digests] == [digest_words(words) for _, words in tensors]
    assert found.sketches == [None] * len(tensors)
    assert not any(complete for (name, _), complete in zip(tensors, found.complete, strict=True) if name not in FORMS)


@pytest.mark.parametrize("extreme", [1e200, 1e-200])
def test_squares_that_overflow_or_vanish_are_left_to_numpy(extreme):
    words = np.array([extreme, 1.0 if extreme > 1 else 0.0])
    assert not summarize_batch([lie(words, "float64")]).complete


def test_a_changed_bit_changes_hash_and_statistics():
    words = np.ones(5000, np.float32)
    before = summarize_batch([lie(words, "float32", sketched=True)])
    words[4999] = np.nan
    after = summarize_batch([lie(words, "float32", sketched=True)])
    assert not np.array_equal(before.digests, after.digests)
    assert (before.statistics["nan"], after.statistics["nan"]) == (0, 1)
    assert not np.array_equal(before.sketches, after.sketches)


def test_nothing_is_nothing():
    assert summarize_batch([]) is None


def test_without_a_compiler_there_is_no_batch(monkeypatch):
    load_summaries.cache_clear()
    monkeypatch.setenv("PRECISION_ALIGN_KERNEL", "numpy")
    try:
        assert summarize_batch([lie(np.ones(3, np.float32), "float32")]) is None
    finally:
        monkeypatch.undo()
        load_summaries.cache_clear()
