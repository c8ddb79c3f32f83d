"""Many tensors on their way into a file, column by column: no Python object each that is not needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np

from precision_align.core.dtypes import Array
from precision_align.core.records import TensorRecord
from precision_align.core.terms import Role, Tier
from precision_align.numerics.batches import STATISTICS, Summaries, Values, make_room
from precision_align.storage import layout
from precision_align.storage.base import Draft
from precision_align.storage.drafts import DeferredDraft
from precision_align.storage.hashing import DIGEST_BYTES, digest_words
from precision_align.storage.patterns import Pattern, Patterns, word_type

_NAMES = list(STATISTICS.names or ())
_NO_DIGEST = bytes(DIGEST_BYTES)


class Columns(NamedTuple):
    """What n drafts say of themselves. ``holders``: objects whose ``words`` are those at ``addresses``, which live as
    long as they do; the rest as in :class:`~precision_align.core.records.TensorRecord`."""

    keys: Sequence[str]
    steps: Sequence[int]
    micros: Sequence[int]
    ranks: Sequence[int]
    roles: Sequence[Role]
    orders: Sequence[int]
    tiers: Sequence[Tier]
    reasons: Sequence[str]
    extras: Sequence[Mapping[str, Any]]
    patterns: Sequence[Pattern]
    holders: Sequence[Any]
    addresses: Sequence[int]


@dataclass
class Batch:
    """What is to be written of n tensors.

    ``rows``: INDEX[n] but for what depends on the file, lines of ``strings`` and places; ``stored``: the numbers of
    those with a payload, which lies at ``addresses``, so many bytes as ``sizes`` say; ``sketches``: by number; of the
    tier SAMPLE the sample; ``held``: keeps the memory.
    """

    rows: Array
    keys: Sequence[str]
    patterns: Sequence[Pattern]
    reasons: list[str]
    extras: list[Mapping[str, Any]]
    sketches: dict[int, Array]
    stored: list[int] = field(default_factory=list)
    addresses: list[int] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    held: list[Any] = field(default_factory=list)

    def digest(self, number: int) -> bytes:
        """The hash of one of them."""
        return bytes(self.rows["digest"][number].tobytes())

    def store(self, number: int, words: Array) -> None:
        """Let one have a payload: of dimensions that repeat what is needed of them."""
        if self.patterns[number].repeats:
            words, self.rows["expanded"][number] = narrow_words(
                words, self.patterns[number].stride, self.digest(number)
            )
        if not words.flags.c_contiguous:
            words = np.ascontiguousarray(words)
        self.stored.append(number)
        self.addresses.append(address_of(words))
        self.sizes.append(words.nbytes)
        self.held.append(words)

    def sort_payloads(self) -> None:
        """In the order of the records: a file's bytes depend on nothing else."""
        order = sorted(range(len(self.stored)), key=self.stored.__getitem__)
        self.stored, self.addresses, self.sizes = (
            [column[place] for place in order] for column in (self.stored, self.addresses, self.sizes)
        )

    def drop_payloads(self, reason: str) -> None:
        """Keep hash and statistics only of what had a payload."""
        self.rows["tier"][self.stored] = layout.TIERS.index(Tier.STATISTICS)
        self.rows["expanded"] = 0
        for number in self.stored:
            self.reasons[number] = reason
        self.stored, self.addresses, self.sizes = [], [], []


_get_draft = attrgetter("slot", "step", "micro", "order", "tier", "reason", "copy")
_get_slot = attrgetter("rank", "tail", "extra", "role")


def read_deferred(drafts: Sequence[DeferredDraft], patterns: Patterns) -> Columns:
    """The columns of drafts whose words lie as their forms say, or that were summarized on a device."""
    slots, steps, micros, orders, tiers, reasons, copies = zip(*map(_get_draft, drafts))
    ranks, tails, extras, roles = zip(*map(_get_slot, slots))
    found = patterns.find_all([copy.form for copy in copies])
    return Columns(
        keys=[f"{step}/{micro}/{tail}" for step, micro, tail in zip(steps, micros, tails)],
        steps=steps,
        micros=micros,
        ranks=ranks,
        roles=roles,
        orders=orders,
        tiers=tiers,
        reasons=reasons,
        extras=[{**one.extra, **extra} if one.extra else extra for one, extra in zip(found, extras)],
        patterns=found,
        holders=copies,
        addresses=[copy.address or _find_address(copy.words) for copy in copies],
    )


def read_drafts(drafts: Sequence[Draft], patterns: Patterns) -> Columns:
    """The columns of drafts that :func:`lies` is true of."""
    addresses = [_find_address(draft.words) for draft in drafts]
    return read_records([draft.record for draft in drafts], patterns, drafts, addresses)


def read_records(
    records: Sequence[TensorRecord], patterns: Patterns, holders: Sequence[Any] = (), addresses: Sequence[int] = ()
) -> Columns:
    """The columns of records."""
    keys = [record.key for record in records]
    return Columns(
        keys=list(map(str, keys)),
        steps=[key.step for key in keys],
        micros=[key.micro for key in keys],
        ranks=[key.rank for key in keys],
        roles=[key.role for key in keys],
        orders=[record.order for record in records],
        tiers=[record.tier for record in records],
        reasons=[record.reason for record in records],
        extras=[record.extra for record in records],
        patterns=list(map(patterns.find_record, records)),
        holders=holders,
        addresses=addresses,
    )


def make_batch(
    columns: Columns,
    tiers: Sequence[Tier],
    reasons: Sequence[str],
    sizes: Sequence[int],
    found: Summaries,
    sketches: dict[int, Array],
) -> Batch:
    """No payloads yet; ``tiers`` and ``reasons``: of what is kept; ``sizes``: in bytes. Of the tier FINGERPRINT the
    statistics are left out. Raises OverflowError where a number is beyond 64 bits."""
    rows = np.frombuffer(bytearray(b"".join([pattern.row for pattern in columns.patterns])), dtype=layout.INDEX)
    rows["step"], rows["micro"], rows["rank"] = columns.steps, columns.micros, columns.ranks
    rows["order"], rows["nbytes"], rows["digest"] = columns.orders, sizes, found.digests
    rows["tier"] = numbers = list(map(layout.TIERS.index, tiers))
    described = found.complete & (np.array(numbers) != layout.TIERS.index(Tier.FINGERPRINT))
    found.statistics[~described] = np.zeros((), dtype=STATISTICS)
    rows[_NAMES] = found.statistics
    flags = rows["flags"]
    flags[described] |= layout.HAS_STATISTICS
    flags[found.digests.any(axis=1)] |= layout.HAS_DIGEST
    for number in sketches:
        flags[number] |= layout.HAS_SAMPLE if tiers[number] == Tier.SAMPLE else layout.HAS_SKETCH
    return Batch(rows, columns.keys, columns.patterns, list(reasons), list(columns.extras), sketches)


def join_summaries(digests: Sequence[bytes], values: Sequence[Values | None]) -> Summaries:
    """What was found one by one; an empty hash is none."""
    found = make_room(len(digests))
    joined = b"".join([digest or _NO_DIGEST for digest in digests])
    found.digests[:] = np.frombuffer(joined, dtype=np.uint8).reshape(-1, DIGEST_BYTES)
    found.complete[:] = [one is not None for one in values]
    found.statistics[found.complete] = [one for one in values if one is not None]
    return found


def lies(words: Array | None, form: Any) -> bool:
    """Whether these are words of the right type and shape in C order; ``form``: a form or a record."""
    return (
        words is not None
        and words.dtype == word_type(form.dtype)
        and words.flags.c_contiguous
        and words.shape == tuple(form.shape)
    )


def address_of(words: Array) -> int:
    """Where an array begins."""
    return int(words.__array_interface__["data"][0])


def _find_address(words: Array | None) -> int:
    return 0 if words is None else address_of(words)


def narrow_words(words: Array, stride: tuple[int, ...], digest: bytes) -> tuple[Array, int]:
    """What has to be stored of a tensor with expanded dimensions, and the bit mask of those dimensions.

    A dimension counts where its recorded stride is 0 and its size above 1. The mask is 0 (all is stored) where the
    values do not really repeat, or beyond 8 dimensions.
    """
    mask = 0
    if len(stride) == words.ndim <= 8:
        mask = sum(1 << axis for axis, step in enumerate(stride) if step == 0 and words.shape[axis] > 1)
    if not mask or not words.size:
        return words, 0
    narrow = words[tuple(slice(0, 1) if mask >> axis & 1 else slice(None) for axis in range(words.ndim))]
    if digest_words(np.broadcast_to(narrow, words.shape)) != digest:
        return words, 0
    return narrow, mask
