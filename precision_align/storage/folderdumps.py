"""A dump made of files: the parts of one or several ranks as one ordered view."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path

import numpy as np

from precision_align.core.dtypes import Array
from precision_align.core.records import Call, Point, RunInfo, TensorRecord
from precision_align.storage.files import PartFile
from precision_align.storage.handles import Handles
from precision_align.storage.lazies import LazyRecords
from precision_align.storage.restarts import describe_restarts
from precision_align.storage.runs import Run
from precision_align.storage.series import merge_points
from precision_align.storage.views import DumpView

# About 1.5 KB each. A comparison walks all of them some ten times: beyond so many they are built anew for each walk,
# which costs 80 us a record in all.
_MAX_BUILT = 1 << 17


@dataclass(frozen=True)
class RankParts:
    """What was found of one rank: files by sequence, ``run.json`` or None, ``series.jsonl``, notes of the reader.

    At least one of ``parts`` and ``run`` is there.
    """

    parts: Sequence[PartFile]
    run: Run | None
    points: Sequence[Point]
    notes: Sequence[str]

    @property
    def remarks(self) -> list[str]:
        """What was left out on purpose."""
        keep = self.run.keep if self.run is not None else None
        if keep is None or not self.parts or not self.parts[0].sequence:
            return []
        return [f"only the last {keep} recorded steps were kept: that is how it was recorded"]

    @cached_property
    def info(self) -> RunInfo:
        """The run's information, the latest there is."""
        if self.run is not None and (self.run.closed or not self.parts):
            return self.run.info
        # Notes only grow during a run: a killed one left its latest in its last file.
        last = self.parts[-1].info
        notes = (*self.run.info.notes, *last.notes) if self.run else last.notes
        return replace(self.run.info if self.run else last, notes=tuple(dict.fromkeys(notes)))


class FolderDump(DumpView):
    """An opened dump; implements :class:`~precision_align.storage.base.Dump`. Payloads are read when asked for."""

    def __init__(self, ranks: Sequence[RankParts], handles: Handles, notes: Sequence[str] = ()) -> None:
        self._ranks = sorted(ranks, key=lambda rank: rank.info.rank)
        self._parts = [part for rank in self._ranks for part in rank.parts]
        self._handles = handles
        self._losses = tuple(notes)
        self._notes = list(notes)
        self._places, repeated = _order(self._parts)
        if repeated:
            self._notes.append(f"{repeated} records were recorded more than once; the last of each is shown")
        self._records = LazyRecords(len(self._places), partial(_build, self._parts, self._places), _MAX_BUILT)

    @property
    def folders(self) -> Sequence[Path]:
        """Where its step files lie, and what was computed from them later."""
        return sorted({part.path.parent for part in self._parts})

    @property
    def info(self) -> RunInfo:
        """Of the lowest rank present."""
        return self.infos[0]

    @cached_property
    def infos(self) -> Sequence[RunInfo]:
        """One a rank, notes included."""
        return [rank.info for rank in self._ranks]

    @property
    def records(self) -> Sequence[TensorRecord]:
        """All tensors, ordered by rank, step and sequence number."""
        return self._records

    @property
    def losses(self) -> Sequence[str]:
        """Of what was recorded, what is not here: files unreadable, missing or unfinished, a run that did not end."""
        return [*self._losses, *(note for rank in self._ranks for note in rank.notes)]

    @cached_property
    def calls(self) -> Sequence[Call]:
        """All calls, ordered by rank, step and exit."""
        found = {(call.rank, call.step, call.identity): call for part in self._parts for call in part.calls()}
        return sorted(found.values(), key=lambda call: (call.rank, call.step, call.exit))

    @cached_property
    def series(self) -> Sequence[Point]:
        """Scalar series of the lowest rank: its files and ``series.jsonl`` merged, ordered by step and micro-batch."""
        first = self._ranks[0]
        return merge_points([*(part.points() for part in first.parts), first.points])

    @cached_property
    def notes(self) -> Sequence[str]:
        """What this dump lacks: gaps, unreadable parts, tensors left out."""
        notes = [*self._notes]
        for rank, info in zip(self._ranks, self.infos):
            notes += [*rank.notes, *rank.remarks, *info.notes, *(note for part in rank.parts for note in part.notes)]
        notes += describe_restarts({rank.info.rank: rank.parts for rank in self._ranks})
        return list(dict.fromkeys(notes))

    @cached_property
    def gaps(self) -> Sequence[str]:
        """Where recorded data are missing or cannot be read: damaged or absent files, a run that was cut off."""
        return list(dict.fromkeys([*self._losses, *(note for rank in self._ranks for note in rank.notes)]))

    @cached_property
    def steps(self) -> Sequence[int]:
        """All steps that have a record or a call, ascending."""
        columns = [part.index["step"] for part in self._parts] + [part.call_steps for part in self._parts]
        return [int(step) for step in np.unique(np.concatenate(columns))] if columns else []

    @property
    def ranks(self) -> Sequence[int]:
        """All ranks present, ascending."""
        return sorted({info.rank for info in self.infos})

    def position(self, text: str) -> int:
        """The position in ``records`` of a key in its text form. Raises KeyError."""
        return self._positions[text]

    @cached_property
    def _positions(self) -> dict[str, int]:
        return dict(zip(self.key_texts(), range(len(self._places))))

    def key_texts(self) -> list[str]:
        """The text forms of all keys in the order of ``records``; far cheaper than the records themselves."""
        keys = [part.keys for part in self._parts]
        if len(keys) == 1 and np.array_equal(self._places[:, 1], np.arange(len(keys[0]))):
            return list(keys[0])
        return [keys[part][row] for part, row in self._places.tolist()]

    def stored_words(self, position: int) -> Array | None:
        """The payload at a position, hash verified, or None. Raises DumpDamaged."""
        part, row = self._locate(position)
        return part.payload(row, self._records[position])

    def mapped_words(self, position: int) -> Array | None:
        """The payload at a position as a read-only view of its file, or None. Raises DumpDamaged."""
        part, row = self._locate(position)
        return part.map_payload(row, self._records[position])

    def stored_sketch(self, position: int) -> Array | None:
        """The stored sketch at a position, or None. Raises DumpDamaged."""
        part, row = self._locate(position)
        return part.sketch(row)

    def stored_sample(self, position: int) -> Array | None:
        """The stored sample at a position, or None. Raises DumpDamaged."""
        part, row = self._locate(position)
        return part.sample(row)

    def _locate(self, position: int) -> tuple[PartFile, int]:
        return _locate(self._parts, self._places, position)

    def close(self) -> None:
        """Close the open files; a later look-up opens them again."""
        self._handles.close()


def _locate(parts: Sequence[PartFile], places: Array, position: int) -> tuple[PartFile, int]:
    return parts[places.item(position, 0)], places.item(position, 1)


def _build(parts: Sequence[PartFile], places: Array, position: int) -> TensorRecord:
    """A function, so that records do not hold the dump that holds them: its memory is free as soon as it is let go."""
    part, row = _locate(parts, places, position)
    return part.record(row)


def _order(parts: Sequence[PartFile]) -> tuple[Array, int]:
    """Places int64[n, 2] of (part, row) in walk order, and how many rows are superseded by a later one of their key."""
    if not sum(len(part.index) for part in parts):
        return np.zeros((0, 2), dtype=np.int64), 0
    sizes = [len(part.index) for part in parts]
    places = np.empty((sum(sizes), 2), dtype=np.int64)
    places[:, 0] = np.repeat(np.arange(len(parts)), sizes)
    places[:, 1] = np.concatenate([np.arange(size) for size in sizes])
    columns = np.concatenate([_pick_columns(part.index) for part in parts], axis=1)
    if _are_distinct(parts, columns):
        kept = None
    else:
        kept = _find_latest(parts)
        places, columns = places[kept], columns[:, kept]
    rank, step, order = columns
    if not _is_sorted(rank, step, order):
        places = places[np.lexsort((order, step, rank) if kept is None else (kept, order, step, rank))]
    return places, sum(sizes) - len(places)


def _pick_columns(index: Array) -> Array:
    """Rank, step and order, int64[3, n]: copied once, for they are looked at several times, rows lying far apart."""
    return np.stack([index["rank"], index["step"], index["order"]])


def _are_distinct(parts: Sequence[PartFile], columns: Array) -> bool:
    """Whether no key can come twice, told without looking at the keys. ``columns``: those of all parts."""
    if not all(part.distinct for part in parts):
        return False
    spans, start = [], 0
    for size in (len(part.index) for part in parts):
        rank, step, _ = columns[:, start : start + size]
        start += size
        if size:
            spans.append((int(rank[0]), int(step.min()), int(step.max())))
    spans.sort()
    return all(left[0] < right[0] or left[2] < right[1] for left, right in zip(spans, spans[1:]))


def _find_latest(parts: Sequence[PartFile]) -> Array:
    latest: dict[str, int] = {}
    total = 0
    for part in parts:
        latest.update(zip(part.keys, range(total, total + len(part.keys))))
        total += len(part.keys)
    return np.fromiter(latest.values(), dtype=np.int64, count=len(latest))


def _is_sorted(rank: Array, step: Array, order: Array) -> bool:
    if (rank == rank[0]).all() and (step == step[0]).all():
        return bool((order[1:] >= order[:-1]).all())
    return False
