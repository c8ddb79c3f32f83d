"""What every kind of dump does the same way once it can find a record's place."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TypeVar

from precision_align.core.dtypes import Array, dtype_of, widen
from precision_align.core.keys import Key
from precision_align.core.records import Call, Point, RunInfo, TensorRecord
from precision_align.numerics.sampling import sample
from precision_align.numerics.sketches import sketch
from precision_align.storage.base import Dump

Self = TypeVar("Self", bound="DumpView")


class DumpView(ABC):
    """The half of :class:`~precision_align.storage.base.Dump` that follows from ``records`` and a few look-ups.

    A view has ``stored_words``, ``mapped_words`` or both of its own.
    """

    @property
    @abstractmethod
    def records(self) -> Sequence[TensorRecord]:
        """All tensors, ordered by rank, step and sequence number."""

    @abstractmethod
    def position(self, text: str) -> int:
        """The position in ``records`` of a key in its text form. Raises KeyError."""

    def stored_words(self, position: int) -> Array | None:
        """The payload at a position, a fresh array, or None. Raises DumpDamaged."""
        words = self.mapped_words(position)
        return None if words is None else words.copy(order="C")

    @abstractmethod
    def stored_sketch(self, position: int) -> Array | None:
        """The stored sketch at a position, a fresh array, or None. Raises DumpDamaged."""

    @abstractmethod
    def stored_sample(self, position: int) -> Array | None:
        """The stored sample at a position, a fresh array, or None. Raises DumpDamaged."""

    def mapped_words(self, position: int) -> Array | None:
        """The payload at a position as a read-only view, or None where that needs a copy. Raises DumpDamaged."""
        return None

    def find(self, text: str) -> TensorRecord:
        """The record of a key given in its text form. Raises KeyError."""
        return self.records[self.position(text)]

    def get(self, key: Key) -> TensorRecord:
        """The record of a key. Raises KeyError."""
        return self.find(str(key))

    def payload(self, key: Key) -> Array:
        """The raw words of a tensor in its logical shape, hash verified; the caller may change them.

        Raises KeyError where there is no such record or no payload of it, DumpDamaged.
        """
        position = self.position(str(key))
        words = self.stored_words(position)
        if words is None:
            record = self.records[position]
            raise KeyError(f"no payload of {key} is stored, only {record.tier}{_because(record)}")
        return words

    def map_payload(self, key: Key) -> Array | None:
        """The raw words of a tensor without a copy, read-only, hash verified; None where only a copy can be had.

        The view stays valid after :meth:`close`. Raises KeyError where there is no such record, DumpDamaged.
        """
        return self.mapped_words(self.position(str(key)))

    def values(self, key: Key) -> Array:
        """The numbers of a tensor: bfloat16 and float8 widened to float32 exactly, the rest as stored."""
        return widen(self.payload(key), dtype_of(self.get(key).dtype))

    def sketch(self, key: Key) -> Array | None:
        """The linear sketch of a tensor in float64, computed where the payload is stored; None where there is neither.

        Raises KeyError, DumpDamaged.
        """
        position = self.position(str(key))
        stored = self.stored_sketch(position)
        if stored is not None:
            return stored
        words = self._find_words(position)
        return None if words is None else sketch(words, dtype_of(self.records[position].dtype))

    def sample(self, key: Key) -> Array | None:
        """The sample of a tensor, taken now where the payload is stored; None where there is neither.

        Raises KeyError, DumpDamaged.
        """
        position = self.position(str(key))
        stored = self.stored_sample(position)
        if stored is not None:
            return stored
        words = self._find_words(position)
        return None if words is None else sample(words, dtype_of(self.records[position].dtype))

    def _find_words(self, position: int) -> Array | None:
        """Without a copy where that is possible."""
        words = self.mapped_words(position)
        return self.stored_words(position) if words is None else words

    def close(self) -> None:
        """Let go of open files; a later look-up opens them again."""
        return None

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def show(words: Array) -> Array:
    """A read-only view."""
    view = words.view()
    view.flags.writeable = False
    return view


class ChangedDump(DumpView):
    """Another dump with other records and calls; what is not changed is that dump's.

    The maker fills ``_records``, ``_calls`` and ``_positions`` (text form of a key -> position).
    """

    def __init__(self, dump: Dump) -> None:
        self._dump, self.path = dump, getattr(dump, "path", "")
        self._records: list[TensorRecord] = []
        self._calls: list[Call] = []
        self._positions: dict[str, int] = {}

    @property
    def infos(self) -> Sequence[RunInfo]:
        """As recorded."""
        return self._dump.infos

    @property
    def records(self) -> Sequence[TensorRecord]:
        """All tensors, ordered by rank, step and sequence number."""
        return self._records

    @property
    def calls(self) -> Sequence[Call]:
        """All calls, ordered by rank, step and exit."""
        return self._calls

    @property
    def series(self) -> Sequence[Point]:
        """As recorded."""
        return self._dump.series

    @property
    def notes(self) -> Sequence[str]:
        """As recorded."""
        return self._dump.notes

    @property
    def gaps(self) -> Sequence[str]:
        """As recorded."""
        return self._dump.gaps

    @property
    def steps(self) -> Sequence[int]:
        """As recorded."""
        return self._dump.steps

    @property
    def ranks(self) -> Sequence[int]:
        """As recorded."""
        return self._dump.ranks

    def position(self, text: str) -> int:
        """The position in ``records`` of a key in its text form. Raises KeyError."""
        return self._positions[text]

    def close(self) -> None:
        """Close the other dump's files."""
        self._dump.close()


def _because(record: TensorRecord) -> str:
    return f": {record.reason}" if record.reason else ""
