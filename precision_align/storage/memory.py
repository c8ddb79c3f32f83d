"""A dump that never leaves memory: for runs in lockstep and for tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from precision_align.core.dtypes import Array
from precision_align.core.errors import DumpError
from precision_align.core.records import Call, Point, RunInfo, TensorRecord
from precision_align.core.terms import Tier
from precision_align.storage.base import AnyDraft
from precision_align.storage.entries import Entry, Finisher
from precision_align.storage.notes import Notebook
from precision_align.storage.series import merge_points
from precision_align.storage.views import DumpView, show


class MemorySink:
    """Keeps what it is given; implements :class:`~precision_align.storage.base.Sink`.

    Hash, statistics and sketch are computed at once, as the tier asks; equal payloads are kept once.
    """

    def __init__(self, info: RunInfo | None = None) -> None:
        self._info = info
        self._finisher = Finisher()
        self._payloads: dict[bytes, Array] = {}
        self._entries: list[Entry] = []
        self._calls: list[Call] = []
        self._points: list[Point] = []
        self._notes = Notebook()

    def put(self, draft: AnyDraft) -> None:
        """Take a tensor."""
        entry = self._finisher.finish(draft)
        if entry.words is not None:
            name = entry.digest + entry.words.dtype.str.encode()
            known = self._payloads.setdefault(name, entry.words)
            entry.words = known.reshape(entry.words.shape)
        self._entries.append(entry)

    def put_call(self, call: Call) -> None:
        """Take a finished call."""
        self._calls.append(call)

    def put_point(self, point: Point) -> None:
        """Take one value of a series."""
        self._points.append(point)

    def note(self, text: str) -> None:
        """Remember something that was not recorded."""
        self._notes.add(text)

    def end_step(self, step: int) -> None:
        """Nothing to make durable here."""

    def close(self, info: RunInfo) -> None:
        """Take the final run information."""
        self._info = info

    def dump(self) -> MemoryDump:
        """What was put so far, as a reader sees it. Raises DumpError before any run information was given."""
        if self._info is None:
            raise DumpError("this memory dump has no run information yet: close the recording session first")
        return MemoryDump(self._info, self._entries, self._calls, self._points, self._notes.texts())


class MemoryDump(DumpView):
    """The finished records of a :class:`MemorySink`; implements :class:`~precision_align.storage.base.Dump`."""

    def __init__(
        self,
        info: RunInfo,
        entries: Sequence[Entry],
        calls: Sequence[Call],
        points: Sequence[Point],
        notes: Sequence[str] = (),
    ) -> None:
        latest = {str(entry.draft.key): entry for entry in entries}
        self._entries = sorted(latest.values(), key=lambda entry: _walk_order(entry.draft))
        self._records = [entry.record for entry in self._entries]
        self._positions = {str(record.key): position for position, record in enumerate(self._records)}
        self._calls = sorted(calls, key=lambda call: (call.rank, call.step, call.exit))
        self._series = merge_points([points])
        self._info = replace(info, notes=tuple(dict.fromkeys([*info.notes, *notes])))

    @property
    def info(self) -> RunInfo:
        """The run's information, with the sink's notes."""
        return self._info

    @property
    def infos(self) -> Sequence[RunInfo]:
        """The same, as the only rank's."""
        return [self._info]

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
        """Scalar series, ordered by step and micro-batch."""
        return self._series

    @property
    def notes(self) -> Sequence[str]:
        """What was not recorded."""
        return list(self._info.notes)

    @property
    def gaps(self) -> Sequence[str]:
        """Nothing is lost in memory."""
        return ()

    @property
    def steps(self) -> Sequence[int]:
        """All steps that have a record or a call, ascending."""
        return sorted({record.key.step for record in self._records} | {call.step for call in self._calls})

    @property
    def ranks(self) -> Sequence[int]:
        """All ranks present, ascending."""
        return sorted({record.key.rank for record in self._records} | {self._info.rank})

    def position(self, text: str) -> int:
        """The position in ``records`` of a key in its text form. Raises KeyError."""
        return self._positions[text]

    def mapped_words(self, position: int) -> Array | None:
        """The payload at a position, read-only and not copied, or None."""
        words = self._entries[position].words
        return None if words is None else show(words)

    def stored_sketch(self, position: int) -> Array | None:
        """A copy of the stored sketch at a position, or None."""
        return self._copy_sketch(position) if self._entries[position].tier is not Tier.SAMPLE else None

    def stored_sample(self, position: int) -> Array | None:
        """A copy of the stored sample at a position, or None."""
        return self._copy_sketch(position) if self._entries[position].tier is Tier.SAMPLE else None

    def _copy_sketch(self, position: int) -> Array | None:
        found = self._entries[position].sketch
        return None if found is None else found.copy()


def _walk_order(record: TensorRecord) -> tuple[int, int, int]:
    return record.key.rank, record.key.step, record.order
