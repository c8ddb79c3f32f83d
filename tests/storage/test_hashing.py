"""Hashes are of logical bytes, and each array is hashed once."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from precision_align.core.dtypes import Array
from precision_align.core.records import Statistics
from precision_align.core.terms import Tier
from precision_align.storage import entries
from precision_align.storage.entries import Finisher
from precision_align.storage.hashing import DIGEST_BYTES, digest_words

arrays = hnp.arrays(
    st.sampled_from([np.float32, np.uint16, np.int8, np.bool_, np.complex64]),
    hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=6),
)


@settings(deadline=None)
@given(arrays)
def test_the_hash_is_of_the_logical_bytes(words: Array) -> None:
    expected = hashlib.blake2b(words.tobytes(), digest_size=DIGEST_BYTES).digest()
    assert digest_words(words) == expected
    assert digest_words(np.asfortranarray(words)) == expected
    if words.ndim:
        assert digest_words(np.repeat(words, 2, axis=-1)[..., ::2]) == expected


def test_large_strided_and_broadcast_arrays() -> None:
    words = np.random.default_rng(0).standard_normal((700, 1000)).astype(np.float32)
    for view in (words.T, words[::-1, ::3], np.broadcast_to(words[0], (900, 1000))):
        assert digest_words(view) == digest_words(np.ascontiguousarray(view))


def test_signed_zeros_and_nan_patterns_differ() -> None:
    assert digest_words(np.array([0.0])) != digest_words(np.array([-0.0]))
    quiet, other = (np.array([bits], np.uint32).view(np.float32) for bits in (0x7FC00000, 0x7FC00001))
    assert digest_words(quiet) != digest_words(other)


def test_an_array_that_comes_again_is_hashed_once(make_draft: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def count(words: Array) -> bytes:
        calls.append(words.size)
        return digest_words(words)

    monkeypatch.setattr(entries, "digest_words", count)
    finisher, words = Finisher(), np.arange(5, dtype=np.float32)
    found = [finisher.finish(make_draft(words, key={"call": call})).record.digest for call in range(3)]
    assert calls == [5]
    assert set(found) == {digest_words(words)}
    for value in range(50):  # new arrays, often at the address of one that is gone
        fresh = np.full(5, value, np.float32)
        assert finisher.finish(make_draft(fresh)).record.digest == digest_words(fresh)
        del fresh


def test_equal_values_of_different_types_are_told_apart(make_draft: Any) -> None:
    finisher = Finisher()
    bits = np.array([0x3F800000, 0x40000000], np.int32)
    one = finisher.finish(make_draft(bits.view(np.float32), "float32")).record
    other = finisher.finish(make_draft(bits, "int32")).record
    assert one.digest == other.digest
    assert one.statistics is not None
    assert one.statistics.maximum == 2.0
    assert other.statistics is not None
    assert other.statistics.maximum == float(0x40000000)


def test_what_was_computed_on_the_device_is_kept(make_draft: Any) -> None:
    statistics = Statistics(3, 0, 0, 0, 0, 1.0, 3.0, 2.0, 14**0.5)
    draft = make_draft(None, shape=(3,), statistics=statistics, digest=b"d" * 16, reason="payload not asked for")
    record = Finisher().finish(draft).record
    assert (record.tier, record.digest, record.statistics) == (Tier.STATISTICS, b"d" * 16, statistics)
    assert record.reason == "payload not asked for"
    draft = make_draft(None, shape=(3,), digest=b"short")
    assert Finisher().finish(draft).record.digest == b""
