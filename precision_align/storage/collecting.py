"""One dump from the folders that the nodes of a run wrote each on its own disk."""

from __future__ import annotations

import filecmp
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from precision_align.core.errors import DumpDamaged, DumpError, DumpForeign, DumpNotFound, StorageFull, UsageError
from precision_align.storage import layout
from precision_align.storage.blobs import is_disk_full
from precision_align.storage.folderdumps import FolderDump
from precision_align.storage.meters import Meter, Progress
from precision_align.storage.opening import open_own
from precision_align.storage.runs import read_run


@dataclass(frozen=True)
class Collected:
    """``ranks`` of ``world`` are there now; ``tensors`` were read back; ``problems``: what is missing or damaged."""

    ranks: Sequence[int]
    world: int
    tensors: int
    problems: Sequence[str] = field(default_factory=list)


def collect(
    sources: Sequence[Path], target: Path, copying: Progress | None = None, reading: Progress | None = None
) -> Collected:
    """Copy the ranks of several folders into one dump and read every payload back against its hash.

    The target may hold other ranks of the run already: nodes may come one after another. A rank that is there already
    with the same files is not copied again. Nothing is changed in the sources. Raises UsageError where two different
    folders claim one rank or the ranks are of runs of different size, DumpNotFound and DumpForeign for a source that is
    no dump, StorageFull, DumpError for what cannot be copied. ``copying``: told (MiB copied, MiB in all); ``reading``:
    (tensors read back, tensors in all).
    """
    found = _find_ranks(sources, target)
    new = {name: folder for name, folder in found.items() if not (target / name).exists()}
    meter = Meter(copying, sum(path.stat().st_size for folder in new.values() for path in folder.iterdir()))
    for name, folder in new.items():
        _copy_rank(folder, target / name, meter)
    with open_own(target) as dump:
        damaged = _read_back(dump, reading)
        worlds = [info.world for info in dump.infos]
        return Collected(dump.ranks, max(worlds), len(dump.records), [*_missing(dump, target), *dump.gaps, *damaged])


def _find_ranks(sources: Sequence[Path], target: Path) -> dict[str, Path]:
    """Rank folder's name -> where it is to be taken from. Raises as :func:`collect`."""
    found: dict[str, Path] = {}
    for source in sources:
        if not source.is_dir():
            raise DumpNotFound(f"there is no folder {source}")
        own = [
            child for child in sorted(source.iterdir()) if layout.RANK_FOLDER.fullmatch(child.name) and child.is_dir()
        ]
        if not own:
            raise DumpForeign(f"{source} holds no rank of a dump: name the folders that the nodes wrote")
        for folder in own:
            twin = found.get(folder.name, target / folder.name)
            if twin.exists() and twin.resolve() != folder.resolve() and not _are_equal(folder, twin):
                raise UsageError(f"{folder} and {twin} are two different recordings of one rank: leave one out")
            found.setdefault(folder.name, folder)
    worlds = {str(path): run.info.world for path in _all_ranks(found, target) if (run := read_run(path)) is not None}
    if len(set(worlds.values())) > 1:
        said = ", ".join(f"{path} is of {world} ranks" for path, world in worlds.items())
        raise UsageError(f"these are not folders of one run: {said}")
    return found


def _all_ranks(found: dict[str, Path], target: Path) -> list[Path]:
    there = sorted(target.iterdir()) if target.is_dir() else []
    foreign = [path.name for path in there if not layout.RANK_FOLDER.fullmatch(path.name)]
    if foreign:
        raise UsageError(f"{target} holds files that are not part of a dump ({foreign[0]}): choose an empty folder")
    return [*found.values(), *(path for path in there if path.name not in found)]


def _are_equal(left: Path, right: Path) -> bool:
    names = [sorted(path.name for path in folder.iterdir()) for folder in (left, right)]
    return names[0] == names[1] and all(filecmp.cmp(left / name, right / name, shallow=False) for name in names[0])


def _copy_rank(source: Path, target: Path, meter: Meter) -> None:
    """A rank is there whole or not at all."""

    def copy_file(path: str, to: str) -> None:
        shutil.copy2(path, to)
        meter.add(Path(to).stat().st_size)

    unfinished = target.with_name(target.name + layout.UNFINISHED)
    try:
        shutil.rmtree(unfinished, ignore_errors=True)
        shutil.copytree(source, unfinished, copy_function=copy_file)
        if not _are_equal(source, unfinished):
            raise DumpDamaged(f"{source} was not copied faithfully, or is still being written: try again")
        unfinished.rename(target)
    except (OSError, shutil.Error) as error:
        with suppress(OSError):
            shutil.rmtree(unfinished)
        if is_disk_full(error):
            raise StorageFull(f"no room for {source} in {target.parent}: free some or choose another") from error
        raise DumpError(f"{source} could not be copied to {target.parent}: {error}") from error


def _missing(dump: FolderDump, target: Path) -> list[str]:
    return [note for note in dump.notes if note.startswith(f"{target} has ")]


def _read_back(dump: FolderDump, progress: Progress | None) -> list[str]:
    damaged, count = [], len(dump.records)
    for position in range(count):
        if progress is not None:
            progress(position, count)
        try:
            dump.stored_words(position)
        except DumpError as error:
            damaged.append(str(error))
    return damaged
