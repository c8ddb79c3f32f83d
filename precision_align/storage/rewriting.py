"""A dump written again with less in it: of some modules, steps and ranks only, or without data."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Protocol

from precision_align.core.errors import DumpForeign, StorageFull
from precision_align.core.keys import Key
from precision_align.core.records import Call, Point, RunInfo
from precision_align.storage import layout
from precision_align.storage.blobs import is_disk_full
from precision_align.storage.entries import Entry, get_values
from precision_align.storage.finishers import BatchFinisher
from precision_align.storage.folderdumps import FolderDump
from precision_align.storage.folders import list_parts
from precision_align.storage.meters import Progress
from precision_align.storage.opening import open_own
from precision_align.storage.parts import Part
from precision_align.storage.runs import Run, write_run
from precision_align.storage.series import SeriesFile
from precision_align.storage.tables import encode_info

# What a record takes beside its payload: its row, its key and its texts.
ROW_BYTES = 600
# So much is read before it is written: at most one tensor more is in memory.
_BYTES_AT_ONCE, _ENTRY_BYTES = 1 << 20, 4096


@dataclass(frozen=True)
class Selection:
    """What of a dump is wanted; None for all. ``scopes``: globs of module names."""

    scopes: tuple[str, ...] | None = None
    steps: Collection[int] | None = None
    ranks: Collection[int] | None = None

    @property
    def is_all(self) -> bool:
        """Whether nothing is left out."""
        return self.scopes is None and self.steps is None and self.ranks is None

    def wants(self, key: Key) -> bool:
        """Whether a tensor is wanted."""
        named = self.scopes is None or any(fnmatchcase(key.scope, glob) for glob in self.scopes)
        return named and self.wants_step(key.step)

    def wants_step(self, step: int) -> bool:
        """Whether a step is wanted."""
        return self.steps is None or step in self.steps

    def wants_rank(self, rank: int) -> bool:
        """Whether a rank is wanted."""
        return self.ranks is None or rank in self.ranks


ALL = Selection()


class Redaction(Protocol):
    """Takes out of each thing what must not leave."""

    def entry(self, entry: Entry) -> Entry:
        """Of a tensor."""

    def call(self, call: Call) -> Call:
        """Of a call."""

    def points(self, points: Iterable[Point]) -> list[Point]:
        """Of the series."""

    def info(self, info: RunInfo) -> RunInfo:
        """Of the run."""


def list_ranks(folder: Path) -> list[Path]:
    """The rank folders of a dump, by rank. Raises DumpForeign where there are none."""
    names = sorted(folder.iterdir()) if folder.is_dir() else []
    found = [path for path in names if layout.RANK_FOLDER.fullmatch(path.name) and path.is_dir()]
    if not found:
        raise DumpForeign(f"{folder} holds no dump of this package: name the folder that `capture` wrote")
    return found


def rewrite_dump(
    source: Path,
    target: Path,
    selection: Selection,
    redaction: Redaction | None = None,
    progress: Progress | None = None,
) -> None:
    """Write what is wanted of a dump into a new folder, equal bytes of equal input. Raises DumpError, StorageFull.

    ``progress``: told (tensors done, tensors in all) of each rank, after each step.
    """
    for folder in list_ranks(source):
        rank = int(folder.name[4:])
        if selection.wants_rank(rank):
            with open_own(folder) as dump:
                own = target / folder.name
                own.mkdir(parents=True)
                try:
                    _rewrite_rank(dump, own, selection, redaction, progress)
                except OSError as error:
                    if is_disk_full(error):
                        raise StorageFull(f"no room in {target}: free some, or choose another folder") from error
                    raise


def _rewrite_rank(
    dump: FolderDump, folder: Path, selection: Selection, redaction: Redaction | None, progress: Progress | None
) -> None:
    info = dump.info if redaction is None else redaction.info(dump.info)
    calls: dict[int, list[Call]] = defaultdict(list)
    for call in dump.calls:
        calls[call.step].append(call if redaction is None else redaction.call(call))
    places: dict[int, list[int]] = defaultdict(list)
    for position, record in enumerate(dump.records):
        if selection.wants(record.key):
            places[record.key.step].append(position)
    lost: list[str] = []
    done, total = 0, sum(map(len, places.values()))
    for step in sorted({*calls, *places}):
        if selection.wants_step(step):
            _write_step(dump, folder, places[step], calls[step], redaction, encode_info(info))
        done += len(places[step])
        if progress is not None:
            progress(done, total)
    series = SeriesFile(folder, lost.append)
    points = [point for point in dump.series if selection.wants_step(point.step)]
    for point in points if redaction is None else redaction.points(points):
        series.append(point)
    series.close()
    write_run(folder, Run(info, not dump.losses, len(list_parts(folder))))


def _write_step(
    dump: FolderDump,
    folder: Path,
    places: list[int],
    calls: list[Call],
    redaction: Redaction | None,
    info: str,
) -> None:
    finisher, part = BatchFinisher(), Part(folder, len(list_parts(folder)))
    for entries in _group((_read_entry(dump, position) for position in places), redaction):
        part.add(finisher.collect(entries))
        if part.is_full:
            part.finish(info)
            part = Part(folder, len(list_parts(folder)))
    if calls:
        part.add_calls(calls)
    part.finish(info)


def _group(entries: Iterable[Entry], redaction: Redaction | None) -> Iterator[list[Entry]]:
    """Some at a time, for memory's sake."""
    group: list[Entry] = []
    nbytes = 0
    for entry in entries:
        group.append(entry if redaction is None else redaction.entry(entry))
        nbytes += _ENTRY_BYTES + (0 if entry.words is None else entry.words.nbytes)
        if nbytes >= _BYTES_AT_ONCE:
            yield group
            group, nbytes = [], 0
    if group:
        yield group


def _read_entry(dump: FolderDump, position: int) -> Entry:
    record = dump.records[position]
    sketch = dump.stored_sketch(position)
    return Entry(
        record,
        record.tier,
        record.digest,
        None if record.statistics is None else get_values(record.statistics),
        record.nbytes,
        record.reason,
        dump.stored_words(position),
        dump.stored_sample(position) if sketch is None else sketch,
    )


def measure(source: Path, selection: Selection, *, payloads: bool) -> tuple[int, int]:
    """How many tensors :func:`rewrite_dump` will write, and about how many bytes. Raises DumpError."""
    total = tensors = 0
    for folder in list_ranks(source):
        if not selection.wants_rank(int(folder.name[4:])):
            continue
        with open_own(folder) as dump:
            wanted = [record for record in dump.records if selection.wants(record.key)]
            tensors += len(wanted)
            total += ROW_BYTES * (len(wanted) + len(dump.calls))
            stored = {record.digest: record.nbytes for record in wanted if record.tier == layout.TIERS[-1]}
            total += sum(stored.values()) if payloads else 0
    return tensors, total
