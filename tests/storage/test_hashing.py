"""Hashes are of logical bytes, and each array is hashed once."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from precision_align.core.dtypes import Array
from precision_align.core.records import Statistics
from precision_align.core.terms import Tier
from precision_align.numerics.folding import Folder, make_table
from precision_align.storage import entries
from precision_align.storage.entries import Finisher
from precision_align.storage.hashing import DIGEST_BYTES, digest_words

arrays = hnp.arrays(
    st.sampled_from([np.float32, np.uint16, np.int8, np.bool_, np.complex64]),
    hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=6),
)


def plain_digest(data: bytes) -> bytes:
    """The definition, one 64-bit word after the other."""
    if len(data) <= 8192:
        return hashlib.blake2b(data, digest_size=DIGEST_BYTES, person=b"pa-whole").digest()
    table = make_table().tolist()
    hasher = hashlib.blake2b(digest_size=DIGEST_BYTES, person=b"pa-folded")
    for start in range(0, len(data), 1 << 18):
        block = data[start : start + (1 << 18)]
        block += bytes(-len(block) % 1024)
        words = struct.unpack(f"<{len(block) // 8}Q", block)
        first, second = [0] * 128, [0] * 128
        for row in range(len(words) // 128):
            keyed = [words[128 * row + lane] ^ table[row + lane] for lane in range(128)]
            for lane in range(128):
                low, mine, next_one = keyed[lane] & 0xFFFFFFFF, keyed[lane] >> 32, keyed[(lane + 1) % 128] >> 32
                first[lane] = (first[lane] + mine * low) % 2**64
                second[lane] = (second[lane] + next_one * low) % 2**64
        hasher.update(struct.pack("<256Q", *first, *second))
    hasher.update(len(data).to_bytes(8, "little"))
    return hasher.digest()


@pytest.mark.parametrize("size", [0, 1, 8191, 8192, 8193, 9216, 131072, 262143, 262144, 262152, 300_001])
def test_against_the_definition(size: int) -> None:
    data = np.random.default_rng(size).integers(0, 256, size, dtype=np.uint8)
    assert digest_words(data) == plain_digest(data.tobytes())


def test_digests_never_change() -> None:
    """Stored hashes are only comparable while the definition is the same."""
    assert digest_words(np.zeros(0)).hex() == "fe1c64e65019b0f16868dc33b80c10c6"
    assert digest_words(np.arange(1000, dtype="<i8")).hex() == "a6bdfde0139b148cb1791a8293547916"
    assert digest_words(np.arange(100_000, dtype="<i8")).hex() == "cab154c69599e0054f4d2b26f4833f4e"


@settings(deadline=None)
@given(arrays)
def test_the_hash_is_of_the_logical_bytes(words: Array) -> None:
    expected = plain_digest(words.tobytes())
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


BASE = np.random.default_rng(0).standard_normal(3 * 4096 + 5).astype(np.float32)  # 48 rows of 128 lanes and a bit


def changed_arrays() -> Iterator[Array]:
    """Thousands of arrays that differ from each other in the ways in which tensors do."""
    yield from flipped_arrays()
    yield from (np.roll(BASE, shift) for shift in range(1, 600))
    yield from (BASE[:length] for length in range(2100, BASE.size, 7))
    yield from (np.zeros(length, np.float32) for length in range(2100, BASE.size, 11))
    for value in (1.0, -1.0, 2.0, 1e-45, np.inf, np.nan, -0.0):
        yield np.full(BASE.size, value, np.float32)
    yield from permuted_arrays()


def flipped_arrays() -> Iterator[Array]:
    bits = BASE.view(np.uint32)
    for position in range(0, BASE.size, 41):
        for bit in (0, 22, 23, 30, 31):
            yield flip(bits, [(position, bit)])
    lane_step = 256  # float32 elements from one row of lanes to the next
    for row in range(40):  # two signs in one lane, in neighbour lanes, in the two halves of one word
        for other in (lane_step, 2 * lane_step, 1, 2, lane_step + 1):
            yield flip(bits, [(row * lane_step, 31), (row * lane_step + other, 31)])


def permuted_arrays() -> Iterator[Array]:
    rows = BASE[: 48 * 256].reshape(48, 256)
    for seed in range(300):
        generator = np.random.default_rng(seed)
        yield np.ascontiguousarray(rows[generator.permutation(48)])
        yield np.ascontiguousarray(rows[:, generator.permutation(256)])
    for first in range(47):  # neighbours swapped: rows, 64-bit columns, halves of words
        yield swap(rows, first, first + 1)
        yield swap(rows.T, first, first + 1).T
        yield swap(rows.T, first, first + 2).T


def flip(bits: Array, places: list[tuple[int, int]]) -> Array:
    copy = bits.copy()
    for position, bit in places:
        copy[position] ^= np.uint32(1 << bit)
    return copy


def swap(rows: Array, first: int, second: int) -> Array:
    copy = rows.copy()
    copy[[first, second]] = copy[[second, first]]
    return copy


def test_no_collisions_among_structured_changes() -> None:
    found: dict[bytes, bytes] = {}
    total = 0
    for array in changed_arrays():
        data = array.tobytes()
        assert found.setdefault(digest_words(array), data) == data
        total += 1
    assert len(found) > total - 20  # a permutation or a swap may be the identity
    assert total > 5000


def test_no_collisions_before_the_last_mixing() -> None:
    """The folded sums alone, which BLAKE2b only mixes: sparse inputs, and all pairs of sign bits of one lane."""
    folder = Folder()
    seen = set()
    for lane in range(0, 128, 9):
        for first in range(12):
            for second in range(first + 1, 12):
                words = np.zeros((12, 128), np.uint64)
                words[[first, second], lane] = 1 << 63
                seen.add(folder.fold(words.reshape(-1).view(np.uint8)).tobytes())
    for bit in range(0, 12 * 128 * 64, 5):
        words = np.zeros(12 * 128, np.uint64)
        words[bit // 64] = 1 << (bit % 64)
        seen.add(folder.fold(words.view(np.uint8)).tobytes())
    assert len(seen) == len(range(0, 128, 9)) * 66 + len(range(0, 12 * 128 * 64, 5))


def test_avalanche() -> None:
    """One input bit changes each bit of the hash with a chance of one half: 400 flips, six standard deviations."""
    bits, flips = BASE.view(np.uint32), 400
    before = np.frombuffer(digest_words(BASE), np.uint8)
    changed = np.zeros(128)
    for number in range(flips):
        position, bit = divmod(number * 977, 32)
        after = np.frombuffer(digest_words(flip(bits, [(position % BASE.size, bit)])), np.uint8)
        changed += np.unpackbits(before ^ after)
    assert np.abs(changed / flips - 0.5).max() < 6 * 0.5 / flips**0.5


def test_hashes_of_the_two_ways_do_not_meet() -> None:
    """A short payload that is the folded form of a longer one has another hash."""
    words = np.arange(1500, dtype=np.uint64)
    folded = Folder().fold(words.view(np.uint8)).tobytes() + words.nbytes.to_bytes(8, "little")
    assert digest_words(np.frombuffer(folded, np.uint8)) != digest_words(words)
