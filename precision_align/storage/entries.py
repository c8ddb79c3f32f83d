"""From a draft to what is kept of it: hash, statistics, sketch and payload, as its tier asks."""

from __future__ import annotations

import weakref
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from precision_align.core.dtypes import Array, Dtype, dtype_of
from precision_align.core.records import Statistics, TensorRecord
from precision_align.core.terms import Tier
from precision_align.numerics.sampling import SAMPLES, sample
from precision_align.numerics.sketches import WHOLE_BELOW_BYTES, sketch
from precision_align.numerics.statistics import summarize
from precision_align.storage.base import Draft
from precision_align.storage.hashing import DIGEST_BYTES, digest_words

# Below so many bytes a tensor is kept whole: what was asked for would be no smaller.
WHOLE_BELOW = {Tier.SKETCH: WHOLE_BELOW_BYTES, Tier.SAMPLE: 8 * SAMPLES}


@dataclass
class Entry:
    """A draft's record and what was made of it; see the fields of the record for most.

    ``words``: None where no payload is kept; ``sketch``: None where it is not stored; of the tier SAMPLE the sample.
    """

    draft: TensorRecord
    tier: Tier
    digest: bytes
    statistics: Statistics | None
    nbytes: int
    reason: str
    words: Array | None = None
    sketch: Array | None = None

    @property
    def record(self) -> TensorRecord:
        """The finished record (a copy: cheap, but not free)."""
        return replace(
            self.draft,
            tier=self.tier,
            digest=self.digest,
            statistics=self.statistics,
            nbytes=self.nbytes,
            reason=self.reason,
        )

    def without_payload(self, reason: str) -> Entry:
        """The same with hash and statistics only."""
        return Entry(self.draft, Tier.STATISTICS, self.digest, self.statistics, self.nbytes, reason)


class Finisher:
    """Turns drafts into entries; equal payloads are summarized once.

    ``payloads``: False once the disk is full, to keep everything but payloads, with ``reason`` on each record.
    """

    def __init__(self) -> None:
        self._summaries: dict[tuple[bytes, str], tuple[Statistics | None, Array | None]] = {}
        self._digests: dict[int, tuple[weakref.ref[Array], bytes]] = {}
        self._samples: dict[tuple[bytes, str], Array] = {}
        self.payloads = True
        self.reason = ""

    def forget(self) -> None:
        """Drop the memory of earlier tensors (at the end of a file)."""
        self._summaries.clear()
        self._digests.clear()
        self._samples.clear()

    def finish(self, draft: Draft) -> Entry:
        """Compute what the record's tier asks for.

        The finished record's ``tier`` says what is stored: FULL where the payload is (also of a tensor under 4 KB
        whose sketch was asked for, or under 16 KB whose sample was). Without usable words that is what the record came
        with, hash or statistics taken on the device, or nothing: FINGERPRINT with an empty digest, with a reason.
        """
        record = draft.record
        words, trouble = check_words(draft)
        given = record.digest if len(record.digest) == DIGEST_BYTES else b""
        if words is None:
            tier = Tier.STATISTICS if record.statistics else Tier.FINGERPRINT
            return Entry(record, tier, given, record.statistics, record.nbytes, record.reason or trouble)
        dtype = dtype_of(record.dtype)
        tier, reason = self._decide(record, words)
        digest = given or self._digest(draft, words)
        statistics, table = self._summarize(digest, words, dtype, tier)
        return Entry(
            record,
            tier,
            digest,
            record.statistics or statistics,
            words.nbytes,
            record.reason or reason,
            words if tier is Tier.FULL else None,
            table,
        )

    def _digest(self, draft: Draft, words: Array) -> bytes:
        """A recorder hands the same array out for every sighting of an unchanged tensor: it is hashed once."""
        known = self._digests.get(id(draft.words))
        if known is not None and known[0]() is draft.words:
            return known[1]
        digest = digest_words(words)
        if draft.words is not None:
            self._digests[id(draft.words)] = (weakref.ref(draft.words), digest)
        return digest

    def _decide(self, record: TensorRecord, words: Array) -> tuple[Tier, str]:
        wanted, reason = record.tier, ""
        if type(wanted) is not Tier:
            wanted = Tier(wanted)
        if words.nbytes < WHOLE_BELOW.get(wanted, 0):
            wanted, reason = Tier.FULL, ""
        if wanted is Tier.FULL and not self.payloads:
            return Tier.SKETCH, self.reason
        return wanted, reason

    def _sample(self, digest: bytes, words: Array, dtype: Dtype) -> Array:
        found = self._samples.get((digest, dtype.name))
        if found is None:
            found = self._samples[digest, dtype.name] = sample(words, dtype)
        return found

    def _summarize(
        self, digest: bytes, words: Array, dtype: Dtype, tier: Tier
    ) -> tuple[Statistics | None, Array | None]:
        if tier is Tier.FINGERPRINT:
            return None, None
        known = self._summaries.get((digest, dtype.name), (None, None))
        statistics = known[0] or summarize(words, dtype)
        # Of a full payload the reader computes the sketch when it is asked for.
        table = known[1] if known[1] is not None or tier is not Tier.SKETCH else sketch(words, dtype)
        self._summaries[digest, dtype.name] = (statistics, table)
        if tier is Tier.SAMPLE:
            return statistics, self._sample(digest, words, dtype)
        return statistics, table if tier is Tier.SKETCH else None


def check_words(draft: Draft) -> tuple[Array | None, str]:
    """The draft's words in their proper word type, or None and the reason why they cannot be kept."""
    record, words = draft.record, draft.words
    if words is None:
        return None, "no values were handed over"
    word = _word_type(record.dtype)
    if word is None:
        return None, f"dtype {record.dtype} has no raw-word form in this version"
    if words.dtype != word:
        if words.dtype.itemsize != word.itemsize:
            return None, f"words of type {words.dtype} were handed over for dtype {record.dtype}"
        words = np.ascontiguousarray(words).reshape(words.shape).view(word)
    if words.shape != record.shape and words.shape != tuple(record.shape):
        return None, f"words of shape {words.shape} were handed over for shape {tuple(record.shape)}"
    return words, ""


@cache
def _word_type(name: str) -> np.dtype[Any] | None:
    dtype = find_dtype(name)
    return None if dtype is None else np.dtype(dtype.word)


def find_dtype(name: str) -> Dtype | None:
    """The table row of a torch dtype name, or None for a type that has no raw-word form here."""
    try:
        return dtype_of(name)
    except KeyError:
        return None


def narrow_words(words: Array, stride: tuple[int, ...], digest: bytes) -> tuple[Array, int]:
    """What has to be stored of a tensor with expanded dimensions, and the bit mask of those dimensions.

    A dimension counts where its recorded stride is 0 and its size above 1. The mask is 0 (all is stored) where the
    values do not really repeat, or beyond 8 dimensions.
    """
    mask = 0
    if 0 not in stride:
        return words, 0
    if len(stride) == words.ndim <= 8:
        mask = sum(1 << axis for axis, step in enumerate(stride) if step == 0 and words.shape[axis] > 1)
    if not mask or not words.size:
        return words, 0
    narrow = words[tuple(slice(0, 1) if mask >> axis & 1 else slice(None) for axis in range(words.ndim))]
    if digest_words(np.broadcast_to(narrow, words.shape)) != digest:
        return words, 0
    return narrow, mask
