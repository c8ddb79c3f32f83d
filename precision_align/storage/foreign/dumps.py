"""A foreign recording as a dump: records whose statistics and hashes are made when they are asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import Any

import numpy as np

from precision_align.core.dtypes import Array, dtype_of
from precision_align.core.errors import DumpDamaged
from precision_align.core.records import Call, Point, RunInfo, Statistics, TensorRecord
from precision_align.core.terms import Tier
from precision_align.numerics.statistics import magnitudes, summarize
from precision_align.storage.foreign.items import Item, Tensor, Unreadable
from precision_align.storage.hashing import bytes_of, digest_words
from precision_align.storage.lazies import LazyRecords
from precision_align.storage.mapping import RESIDENT_BYTES, find_mapping, release_pages
from precision_align.storage.views import DumpView, show

# Values of a tensor that its record keeps.
FIRST = 16
# How much of two tensors is compared at once: first a page, then pieces of which two stay in a core's L2 cache.
FIRST_BYTES = 4096
BLOCK_BYTES = 1 << 19


class _Latest:
    """Reads tensors. The one that was read last stays mapped: most often it is asked for again at once."""

    def __init__(self) -> None:
        self._kept: tuple[Callable[[], Tensor], Tensor] | None = None

    def read(self, load: Callable[[], Tensor]) -> Tensor:
        """Raises Unreadable."""
        kept = self._kept
        if kept is not None and kept[0] is load:
            return kept[1]
        tensor = load()
        self._kept = None if find_mapping(tensor.words) is None else (load, tensor)
        return tensor

    def forget(self) -> None:
        """Let go of it."""
        self._kept = None


class _LoadedRecord(TensorRecord):
    """The record of a tensor in a mapped file: statistics and hash are a pass over it, made when somebody asks for
    them. Whether two such tensors are equal is asked of the files themselves: that is less than a hash of each, and
    next to nothing where they differ.
    """

    @cached_property
    def statistics(self) -> Statistics | None:
        words = self._read()
        if words is None:
            return None
        found = summarize(words, dtype_of(self.dtype))
        if words.nbytes > RESIDENT_BYTES:
            release_pages(words)
        return found

    @cached_property
    def digest(self) -> bytes:
        words = self._read()
        return b"" if words is None else digest_words(words, release_pages if words.nbytes > RESIDENT_BYTES else None)

    @property
    def is_hashed(self) -> bool:
        return "digest" not in self.__dict__ or bool(self.digest)

    def has_hash_of(self, other: TensorRecord) -> bool:
        known = self.__dict__
        if "digest" in known or not isinstance(other, _LoadedRecord) or "digest" in other.__dict__:
            return self.digest == other.digest
        if "_compared" not in known or known["_compared"][0] is not other:
            known["_compared"] = other, self._is_like(other)
        return bool(known["_compared"][1])

    def _is_like(self, other: _LoadedRecord) -> bool:
        if self.nbytes != other.nbytes or self.__dict__["_first"].tobytes() != other.__dict__["_first"].tobytes():
            return False
        words = self._read(), other._read()
        return words[0] is not None and words[1] is not None and are_same(words[0], words[1])

    @property
    def is_all_nan(self) -> bool:
        return self.nbytes > 0 and bool(np.isnan(self._head).all()) and super().is_all_nan

    @property
    def is_all_zero(self) -> bool:
        return not self._head.any() and super().is_all_zero

    @property
    def is_constant(self) -> bool:
        return bool((self._head == self._head[:1]).all()) and super().is_constant

    @property
    def _head(self) -> Array:
        """The first few values, which most often say no to all three."""
        return magnitudes(self.__dict__["_first"], dtype_of(self.dtype))

    def _read(self) -> Array | None:
        """The words once more; None where they cannot be read any more."""
        try:
            tensor: Tensor = self.__dict__["_load"]()
        except Unreadable:  # it was not, when the record was made
            return None
        return tensor.words

    @classmethod
    def make(cls, load: Callable[[], Tensor], words: Array, **fields: Any) -> TensorRecord:
        """``load``: gives the tensor once more; ``words``: it."""
        record = cls(**fields)
        known = record.__dict__
        del known["statistics"], known["digest"]
        known["_load"], known["_first"] = load, words.reshape(-1)[:FIRST].copy()
        if find_mapping(words) is None:  # unpacked or rearranged: worth a hash while it is at hand
            known["digest"] = digest_words(words)
        return record


def are_same(left: Array, right: Array) -> bool:
    """Whether two C-contiguous arrays of as many bytes have the same ones. The first page is looked at before the rest:
    tensors that differ mostly differ there.
    """
    sides = bytes_of(left), bytes_of(right)
    start, size = 0, FIRST_BYTES
    while start < left.nbytes:
        ours, theirs = (side[start : start + size] for side in sides)
        whole = ours.size // 8 * 8
        if (ours[:whole].view(np.uint64) != theirs[:whole].view(np.uint64)).any():
            return False
        if (ours[whole:] != theirs[whole:]).any():
            return False
        for side in (ours, theirs) if left.nbytes > RESIDENT_BYTES else ():
            release_pages(side)
        start, size = start + size, BLOCK_BYTES
    return True


def _describe(item: Item, latest: _Latest) -> TensorRecord:
    reason = item.reason
    if item.load is not None:
        try:
            return _describe_tensor(item, partial(latest.read, item.load))
        except Unreadable as error:
            reason = str(error)
    return TensorRecord(
        key=item.key,
        dtype=item.dtype,
        shape=item.shape,
        stride=_contiguous(item.shape),
        layout="strided",
        device="",
        requires_grad=item.requires_grad,
        order=item.order,
        tier=Tier.STATISTICS if item.statistics else Tier.FINGERPRINT,
        statistics=item.statistics,
        nbytes=int(np.prod(item.shape, dtype=np.int64)) * _itemsize(item.dtype),
        reason=reason,
    )


def _describe_tensor(item: Item, load: Callable[[], Tensor]) -> TensorRecord:
    tensor = load()
    words = tensor.words
    return _LoadedRecord.make(
        load,
        words,
        key=item.key,
        dtype=tensor.dtype,
        shape=words.shape,
        stride=_contiguous(words.shape),
        layout="strided",
        device="",
        requires_grad=item.requires_grad,
        order=item.order,
        tier=Tier.FULL,
        nbytes=words.nbytes,
    )


def _itemsize(dtype: str) -> int:
    try:
        return dtype_of(dtype).itemsize
    except KeyError:
        return 0


def _contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    steps, step = [], 1
    for size in reversed(shape):
        steps.append(step)
        step *= max(size, 1)
    return tuple(reversed(steps))


class ForeignDump(DumpView):
    """Implements :class:`~precision_align.storage.base.Dump`. Two items of one key: the last one counts."""

    def __init__(
        self, infos: Sequence[RunInfo], items: Sequence[Item], calls: Sequence[Call], notes: Sequence[str]
    ) -> None:
        latest = {str(item.key): item for item in items}
        ordered = sorted(latest.items(), key=lambda pair: (pair[1].key.rank, pair[1].key.step, pair[1].order))
        self._items = [item for _, item in ordered]
        self._latest = _Latest()
        self._positions = {text: position for position, (text, _) in enumerate(ordered)}
        # each tensor is read once, when its record is first asked for; only the record is kept
        self._records = LazyRecords(len(ordered), self._build)
        self._infos = sorted(infos, key=lambda info: info.rank)
        self._calls = sorted(calls, key=lambda call: (call.rank, call.step, call.exit))
        repeated = len(items) - len(latest)
        self._notes = [
            *notes,
            *([f"{repeated} tensors have the key of a later one and are not shown"] if repeated else []),
        ]

    @property
    def info(self) -> RunInfo:
        """Of the lowest rank present."""
        return self._infos[0]

    @property
    def infos(self) -> Sequence[RunInfo]:
        """One a rank."""
        return self._infos

    @property
    def records(self) -> Sequence[TensorRecord]:
        """All tensors, ordered by rank, step and place in the recording."""
        return self._records

    @property
    def calls(self) -> Sequence[Call]:
        """Module calls, as far as the recording tells."""
        return self._calls

    @property
    def series(self) -> Sequence[Point]:
        """None: foreign recordings hold tensors."""
        return []

    @property
    def notes(self) -> Sequence[str]:
        """What the recording lacks."""
        return self._notes

    @property
    def gaps(self) -> Sequence[str]:
        """None are known: nothing says how much there should be."""
        return []

    @cached_property
    def steps(self) -> Sequence[int]:
        """All steps that have a tensor, ascending."""
        return sorted({item.key.step for item in self._items})

    @property
    def ranks(self) -> Sequence[int]:
        """All ranks present, ascending."""
        return [info.rank for info in self._infos]

    def _build(self, position: int) -> TensorRecord:
        return _describe(self._items[position], self._latest)

    def position(self, text: str) -> int:
        """The position in ``records`` of a key in its text form. Raises KeyError."""
        return self._positions[text]

    def mapped_words(self, position: int) -> Array | None:
        """The tensor at a position, read-only, or None. Raises DumpDamaged where it changed since it was described."""
        record, load = self._records[position], self._items[position].load
        if load is None or record.tier is not Tier.FULL:
            return None
        try:
            words = self._latest.read(load).words
        except Unreadable as error:
            raise DumpDamaged(f"{record.key} cannot be read any more: {error}") from error
        if (words.shape, words.nbytes) != (record.shape, record.nbytes):
            raise DumpDamaged(f"{record.key} changed while it was compared")
        return show(words)

    def close(self) -> None:
        """Let go of what is mapped; a later look-up maps it again."""
        self._latest.forget()

    def stored_sketch(self, position: int) -> Array | None:
        """None: sketches are made of the tensors."""
        return None

    def stored_sample(self, position: int) -> Array | None:
        """None: so are samples."""
        return None
