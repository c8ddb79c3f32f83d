"""From a draft to what is kept of it: hash, statistics, sketch and payload, as its tier asks."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import fields, replace
from operator import attrgetter
from typing import Any, Optional

import numpy as np

from precision_align.core.dtypes import Array, Dtype, dtype_of
from precision_align.core.records import Statistics, TensorRecord
from precision_align.core.terms import Role, Tier
from precision_align.numerics.batches import Values
from precision_align.numerics.sampling import SAMPLES, sample
from precision_align.numerics.sketches import WHOLE_BELOW_BYTES, sketch
from precision_align.numerics.statistics import summarize
from precision_align.storage.base import AnyDraft, Draft
from precision_align.storage.checkpoints import EXTRA, Checkpoint, Reference
from precision_align.storage.drafts import DeferredDraft, Summary, make_record
from precision_align.storage.hashing import DIGEST_BYTES, digest_words
from precision_align.storage.patterns import word_type

# What may be kept as a reference to a checkpoint.
_REFERRED = (Role.PARAMETER, Role.BUFFER)
# Below so many bytes a tensor is kept whole: what was asked for would be no smaller.
WHOLE_BELOW = {Tier.SKETCH: WHOLE_BELOW_BYTES, Tier.SAMPLE: 8 * SAMPLES}


# Statistics and sketch, None where not computed; a holder of words with their digest and those.
Found = tuple[Optional[Values], Optional[Array]]
Met = tuple["weakref.ref[Any]", bytes, Found]
NOTHING: Found = (None, None)


class Entry:
    """A draft's record and what was made of it; see the fields of the record for most.

    ``draft``: the record as it came; ``values``: those of the statistics; ``words``: None where no payload is kept;
    ``checkpoint``: where it stands instead; ``sketch``: None where it is not stored; of the tier SAMPLE the sample.
    """

    __slots__ = ("checkpoint", "digest", "draft", "nbytes", "reason", "sketch", "tier", "values", "words")

    def __init__(
        self,
        draft: TensorRecord,
        tier: Tier,
        digest: bytes,
        values: Values | None,
        nbytes: int,
        reason: str,
        words: Array | None = None,
        sketch: Array | None = None,
    ) -> None:
        self.draft, self.tier, self.digest, self.values = draft, tier, digest, values
        self.nbytes, self.reason, self.words, self.sketch = nbytes, reason, words, sketch
        self.checkpoint: Reference | None = None

    @property
    def extra(self) -> Mapping[str, Any]:
        """The record's, with the place in a checkpoint."""
        extra = self.draft.extra
        return extra if self.checkpoint is None else {**extra, EXTRA: self.checkpoint}

    @property
    def record(self) -> TensorRecord:
        """The finished record (a copy: cheap, but not free)."""
        return replace(
            self.draft,
            tier=self.tier,
            digest=self.digest,
            statistics=None if self.values is None else Statistics(*self.values),
            nbytes=self.nbytes,
            reason=self.reason,
            extra=self.extra,
        )

    def without_payload(self, reason: str) -> Entry:
        """The same with hash and statistics only."""
        return Entry(self.draft, Tier.STATISTICS, self.digest, self.values, self.nbytes, reason)


class Finisher:
    """Turns drafts into entries; equal payloads are summarized once.

    ``checkpoint``: parameters and buffers that stand in it are referred to; ``payloads``: False once the disk is full,
    to keep everything but payloads, with ``reason`` on each record.
    """

    def __init__(self, checkpoint: Checkpoint | None = None) -> None:
        self.checkpoint = checkpoint
        self._summaries: dict[tuple[bytes, str], Found] = {}
        self._met: dict[int, Met] = {}
        self._samples: dict[tuple[bytes, str], Array] = {}
        self.payloads = True
        self.reason = ""

    def forget(self) -> None:
        """Drop the memory of earlier tensors (at the end of a file)."""
        self._summaries.clear()
        self._met.clear()
        self._samples.clear()

    def finish(self, draft: AnyDraft) -> Entry:
        """Compute what the record's tier asks for.

        The finished record's ``tier`` says what is stored: FULL where the payload is (also of a tensor under 4 KB
        whose sketch was asked for, or under 16 KB whose sample was). Without usable words that is what the record came
        with, hash or statistics taken on the device, or nothing: FINGERPRINT with an empty digest, with a reason.
        """
        record = record_of(draft)
        if not isinstance(draft, Draft) and not draft.copy.address and draft.copy.summary is not None:
            tier, reason, values, table = read_summary(draft.copy.summary, record.tier, record.reason)
            return Entry(record, tier, draft.copy.summary.digest, values, record.nbytes, reason, None, table)
        holder: Any = draft.words if isinstance(draft, Draft) else draft.copy
        words, trouble = check_words(record, draft.words if isinstance(draft, Draft) else draft.copy.words)
        given = record.digest if len(record.digest) == DIGEST_BYTES else b""
        values = None if record.statistics is None else get_values(record.statistics)
        if words is None:
            tier = Tier.STATISTICS if values else Tier.FINGERPRINT
            return Entry(record, tier, given, values, record.nbytes, record.reason or trouble)
        tier, reason = self.decide(record.tier, words.nbytes)
        digest, summary = (given, NOTHING) if given else self._digest(holder, words)
        found, table = self._summarize(digest, words, record.dtype, tier, summary)
        kept = words if tier is Tier.FULL else None
        entry = Entry(record, tier, digest, values or found, words.nbytes, record.reason or reason, kept, table)
        entry.checkpoint = self.refer(entry.words, digest, record.key.role, record.dtype)
        if entry.checkpoint is not None:
            entry.words = None
        return entry

    def refer(self, words: Array | None, digest: bytes, role: Role, dtype: str) -> Reference | None:
        """Where in the checkpoint a payload stands already."""
        if self.checkpoint is None or words is None or role not in _REFERRED:
            return None
        return self.checkpoint.find(digest, dtype, words.shape)

    def recall(self, holder: Any) -> Met | None:
        """What is known of the words of an object that came before."""
        known = self._met.get(id(holder))
        return known if known is not None and known[0]() is holder else None

    def remember(self, holder: Any, digest: bytes, found: Found) -> None:
        """A recorder hands the same copy out for every sighting of an unchanged tensor: it is hashed once."""
        with suppress(TypeError):  # an object that cannot be referred to weakly
            self._met[id(holder)] = (weakref.ref(holder), digest, found)

    def _digest(self, holder: Any, words: Array) -> tuple[bytes, Found]:
        known = self.recall(holder)
        if known is not None:
            return known[1:]
        digest = digest_words(words)
        self.remember(holder, digest, NOTHING)
        return digest, NOTHING

    def decide(self, wanted: Tier, nbytes: int) -> tuple[Tier, str]:
        """What is kept of a tensor, and why that is less than was asked for."""
        if type(wanted) is not Tier:
            wanted = Tier(wanted)
        if nbytes < WHOLE_BELOW.get(wanted, 0):
            wanted = Tier.FULL
        if wanted is Tier.FULL and not self.payloads:
            return Tier.SKETCH, self.reason
        return wanted, ""

    def sample(self, digest: bytes, words: Array, dtype: Dtype) -> Array:
        """The sample of words of this hash."""
        found = self._samples.get((digest, dtype.name))
        if found is None:
            found = self._samples[digest, dtype.name] = sample(words, dtype)
        return found

    def _summarize(self, digest: bytes, words: Array, name: str, tier: Tier, summary: Found) -> Found:
        """``summary``: what is known already of words of this digest and dtype."""
        if tier is Tier.FINGERPRINT:
            return NOTHING
        values, table = summary
        # Of a full payload the reader computes the sketch when it is asked for.
        if values is None or (table is None and tier is Tier.SKETCH):
            values, table = self.complete(digest, words, dtype_of(name), tier is Tier.SKETCH)
        if tier is Tier.SAMPLE:
            return values, self.sample(digest, words, dtype_of(name))
        return values, table if tier is Tier.SKETCH else None

    def complete(self, digest: bytes, words: Array, dtype: Dtype, sketched: bool) -> Found:
        """Statistics, and the sketch where it is wanted, of words of this hash."""
        values, table = self._summaries.get((digest, dtype.name), NOTHING)
        values = values or get_values(summarize(words, dtype))
        if sketched and table is None:
            table = sketch(words, dtype)
        found = self._summaries[digest, dtype.name] = (values, table)
        return found


def read_summary(found: Summary, tier: Tier, reason: str) -> tuple[Tier, str, Values | None, Array | None]:
    """What is kept of a tensor that was summarized on its device; the budget may have lowered its tier since."""
    if found.reason or tier == Tier.FINGERPRINT:
        return Tier.FINGERPRINT, found.reason or reason, None, None
    return tier, reason, found.values, found.sketch if tier == Tier.SKETCH else None


def record_of(draft: AnyDraft) -> TensorRecord:
    """A draft's record without digest and statistics."""
    return draft.record if isinstance(draft, (Draft, DeferredDraft)) else make_record(draft)


# The columns of a tensor's statistics.
get_values: Callable[[Statistics], Values] = attrgetter(*(field.name for field in fields(Statistics)))


def check_words(record: TensorRecord, words: Array | None) -> tuple[Array | None, str]:
    """A draft's words in their proper word type, or None and the reason why they cannot be kept."""
    if words is None:
        return None, "no values were handed over"
    word = word_type(record.dtype)
    if word is None:
        return None, f"dtype {record.dtype} has no raw-word form in this version"
    if words.dtype != word:
        if words.dtype.itemsize != word.itemsize:
            return None, f"words of type {words.dtype} were handed over for dtype {record.dtype}"
        words = np.ascontiguousarray(words).reshape(words.shape).view(word)
    if words.shape != record.shape and words.shape != tuple(record.shape):
        return None, f"words of shape {words.shape} were handed over for shape {tuple(record.shape)}"
    return words, ""
