"""From a draft to what is kept of it: hash, statistics, sketch and payload, as its tier asks."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, replace
from functools import cache
from operator import attrgetter
from typing import Any, Optional

import numpy as np

from precision_align.core.dtypes import Array, Dtype, dtype_of
from precision_align.core.records import Statistics, TensorRecord
from precision_align.core.terms import Role, Tier
from precision_align.numerics.batches import Lying, Values, summarize_batch
from precision_align.numerics.sampling import SAMPLES, sample
from precision_align.numerics.sketches import WHOLE_BELOW_BYTES, sketch
from precision_align.numerics.statistics import summarize
from precision_align.storage.base import AnyDraft
from precision_align.storage.checkpoints import EXTRA, Checkpoint, Reference
from precision_align.storage.drafts import DeferredDraft, Summary
from precision_align.storage.hashing import DIGEST_BYTES, digest_words

# What may be kept as a reference to a checkpoint.
_REFERRED = (Role.PARAMETER, Role.BUFFER)
# Below so many bytes a tensor is kept whole: what was asked for would be no smaller.
WHOLE_BELOW = {Tier.SKETCH: WHOLE_BELOW_BYTES, Tier.SAMPLE: 8 * SAMPLES}


# Statistics and sketch, None where not computed; a holder of words with their digest and those.
_Summary = tuple[Optional[Values], Optional[Array]]
_Met = tuple["weakref.ref[Any]", bytes, _Summary]
_NOTHING: _Summary = (None, None)


class Entry:
    """A draft's record and what was made of it; see the fields of the record for most.

    ``source``: the record as it came, or the draft that makes it when asked; ``values``: those of the statistics;
    ``words``: None where no payload is kept; ``checkpoint``: where it stands instead; ``sketch``: None where it is not
    stored; of the tier SAMPLE the sample.
    """

    __slots__ = ("checkpoint", "digest", "nbytes", "reason", "sketch", "source", "tier", "values", "words")

    def __init__(
        self,
        source: TensorRecord | DeferredDraft,
        tier: Tier,
        digest: bytes,
        values: Values | None,
        nbytes: int,
        reason: str,
        words: Array | None = None,
        sketch: Array | None = None,
    ) -> None:
        self.source, self.tier, self.digest, self.values = source, tier, digest, values
        self.nbytes, self.reason, self.words, self.sketch = nbytes, reason, words, sketch
        self.checkpoint: Reference | None = None

    @property
    def extra(self) -> Mapping[str, Any]:
        """The record's, with the place in a checkpoint."""
        extra = self.source.extra
        return extra if self.checkpoint is None else {**extra, EXTRA: self.checkpoint}

    @property
    def draft(self) -> TensorRecord:
        """The record as it came."""
        return self.source.record if isinstance(self.source, DeferredDraft) else self.source

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
        return Entry(self.source, Tier.STATISTICS, self.digest, self.values, self.nbytes, reason)


class Finisher:
    """Turns drafts into entries; equal payloads are summarized once.

    ``checkpoint``: parameters and buffers that stand in it are referred to; ``payloads``: False once the disk is full,
    to keep everything but payloads, with ``reason`` on each record.
    """

    def __init__(self, checkpoint: Checkpoint | None = None) -> None:
        self._checkpoint = checkpoint
        self._summaries: dict[tuple[bytes, str], _Summary] = {}
        self._met: dict[int, _Met] = {}
        self._samples: dict[tuple[bytes, str], Array] = {}
        self.payloads = True
        self.reason = ""

    def forget(self) -> None:
        """Drop the memory of earlier tensors (at the end of a file)."""
        self._summaries.clear()
        self._met.clear()
        self._samples.clear()

    def prepare(self, drafts: Iterable[AnyDraft]) -> None:
        """Hash and summarize in one go those that :meth:`finish` will be asked for next, where that is possible."""
        new: dict[int, tuple[Any, Lying]] = {}
        for draft in drafts:
            holder = draft.copy if isinstance(draft, DeferredDraft) else draft.words
            if holder is None or id(holder) in new or self._recall(holder) is not None:
                continue
            lying = locate(draft)
            if lying is not None:
                new[id(holder)] = holder, lying
        found = summarize_batch([lying for _, lying in new.values()])
        for (holder, lying), one in zip(new.values(), found or ()):
            summary = _NOTHING
            if one.values is not None:
                summary = self._summaries.setdefault((one.digest, lying.dtype), (one.values, one.sketch))
            self._met[id(holder)] = (weakref.ref(holder), one.digest, summary)

    def finish(self, draft: AnyDraft) -> Entry:
        """Compute what the record's tier asks for.

        The finished record's ``tier`` says what is stored: FULL where the payload is (also of a tensor under 4 KB
        whose sketch was asked for, or under 16 KB whose sample was). Without usable words that is what the record came
        with, hash or statistics taken on the device, or nothing: FINGERPRINT with an empty digest, with a reason.
        """
        if isinstance(draft, DeferredDraft) and draft.copy.address:
            return self._finish_copy(draft)
        if isinstance(draft, DeferredDraft) and draft.copy.summary is not None:
            return _finish_summary(draft, draft.copy.summary)
        record = draft.record
        words, trouble = check_words(draft)
        given = record.digest if len(record.digest) == DIGEST_BYTES else b""
        values = None if record.statistics is None else get_values(record.statistics)
        if words is None:
            tier = Tier.STATISTICS if values else Tier.FINGERPRINT
            return Entry(record, tier, given, values, record.nbytes, record.reason or trouble)
        tier, reason = self._decide(record.tier, words.nbytes)
        digest, summary = (given, _NOTHING) if given else self._digest(draft.words, words)
        found, table = self._summarize(digest, words, record.dtype, tier, summary)
        kept = words if tier is Tier.FULL else None
        entry = Entry(record, tier, digest, values or found, words.nbytes, record.reason or reason, kept, table)
        return self._refer(entry, record.key.role, record.dtype, record.shape)

    def _finish_copy(self, draft: DeferredDraft) -> Entry:
        """A copy that is known to be in order; its record is not needed."""
        copy, form = draft.copy, draft.copy.form
        words = copy.words
        assert words is not None
        tier, reason = draft.tier, ""
        if tier is not Tier.STATISTICS:
            tier, reason = self._decide(tier, form.nbytes)
        digest, summary = self._digest(copy, words)
        values, table = self._summarize(digest, words, form.dtype, tier, summary)
        kept = words if tier is Tier.FULL else None
        entry = Entry(draft, tier, digest, values, form.nbytes, draft.reason or reason, kept, table)
        return self._refer(entry, draft.slot.role, form.dtype, form.shape)

    def _refer(self, entry: Entry, role: Role, dtype: str, shape: tuple[int, ...]) -> Entry:
        """Without its payload where that stands in the checkpoint."""
        if self._checkpoint is not None and entry.words is not None and role in _REFERRED:
            entry.checkpoint = self._checkpoint.find(entry.digest, dtype, shape)
            if entry.checkpoint is not None:
                entry.words = None
        return entry

    def _recall(self, holder: Any) -> _Met | None:
        known = self._met.get(id(holder))
        return known if known is not None and known[0]() is holder else None

    def _digest(self, holder: Any, words: Array) -> tuple[bytes, _Summary]:
        """A recorder hands the same copy out for every sighting of an unchanged tensor: it is hashed once."""
        known = self._recall(holder)
        if known is None:
            known = self._met[id(holder)] = (weakref.ref(holder), digest_words(words), _NOTHING)
        return known[1], known[2]

    def _decide(self, wanted: Tier, nbytes: int) -> tuple[Tier, str]:
        reason = ""
        if type(wanted) is not Tier:
            wanted = Tier(wanted)
        if nbytes < WHOLE_BELOW.get(wanted, 0):
            wanted, reason = Tier.FULL, ""
        if wanted is Tier.FULL and not self.payloads:
            return Tier.SKETCH, self.reason
        return wanted, reason

    def _sample(self, digest: bytes, words: Array, dtype: Dtype) -> Array:
        found = self._samples.get((digest, dtype.name))
        if found is None:
            found = self._samples[digest, dtype.name] = sample(words, dtype)
        return found

    def _summarize(self, digest: bytes, words: Array, name: str, tier: Tier, summary: _Summary) -> _Summary:
        """``summary``: what is known already of words of this digest and dtype."""
        if tier is Tier.FINGERPRINT:
            return _NOTHING
        values, table = summary
        # Of a full payload the reader computes the sketch when it is asked for.
        if values is None or (table is None and tier is Tier.SKETCH):
            values, table = self._complete(digest, words, dtype_of(name), tier is Tier.SKETCH)
        if tier is Tier.SAMPLE:
            return values, self._sample(digest, words, dtype_of(name))
        return values, table if tier is Tier.SKETCH else None

    def _complete(self, digest: bytes, words: Array, dtype: Dtype, sketched: bool) -> _Summary:
        values, table = self._summaries.get((digest, dtype.name), _NOTHING)
        values = values or get_values(summarize(words, dtype))
        if sketched and table is None:
            table = sketch(words, dtype)
        found = self._summaries[digest, dtype.name] = (values, table)
        return found


def _finish_summary(draft: DeferredDraft, found: Summary) -> Entry:
    """A tensor that was summarized on its device; the budget may have lowered its tier since."""
    tier, reason = draft.tier, draft.reason
    if found.reason:
        tier, reason = Tier.FINGERPRINT, found.reason
    values = None if tier is Tier.FINGERPRINT else found.values
    table = found.sketch if tier is Tier.SKETCH else None
    return Entry(draft, tier, found.digest, values, draft.copy.form.nbytes, reason, None, table)


# The columns of a tensor's statistics.
get_values: Callable[[Statistics], Values] = attrgetter(*(field.name for field in fields(Statistics)))


def locate(draft: AnyDraft) -> Lying | None:
    """Where a draft's words lie, None where they are not C-contiguous words of the right type."""
    if isinstance(draft, DeferredDraft) and draft.copy.address:
        form = draft.copy.form
        sketched = draft.tier is Tier.SKETCH and form.nbytes >= WHOLE_BELOW_BYTES
        return Lying(draft.copy.address, math.prod(form.shape), form.nbytes, form.dtype, sketched)
    words, record = draft.words, draft.record
    if words is None or words.dtype != _word_type(record.dtype) or not words.flags.c_contiguous:
        return None
    sketched = record.tier == Tier.SKETCH and words.nbytes >= WHOLE_BELOW_BYTES
    return Lying(words.__array_interface__["data"][0], words.size, words.nbytes, record.dtype, sketched)


def check_words(draft: AnyDraft) -> tuple[Array | None, str]:
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
