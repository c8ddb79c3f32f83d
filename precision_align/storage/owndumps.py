"""Opening a dump of ours: a folder of ranks, the folder of one rank, or a single file."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from precision_align.core.errors import DumpDamaged, DumpError, DumpForeign, DumpNotFound
from precision_align.storage import layout
from precision_align.storage.files import PartFile
from precision_align.storage.folderdumps import FolderDump, RankParts
from precision_align.storage.handles import Handles
from precision_align.storage.remote import is_remote
from precision_align.storage.runs import Run, read_run
from precision_align.storage.series import read_series


def open_folder(place: Path) -> FolderDump:
    """A dump that this package wrote; as :func:`~precision_align.storage.opening.open_dump`."""
    handles = Handles()
    # Path.is_dir raises on a name that is too long
    if not (place.is_dir() if is_remote(place) else os.path.isdir(place)):  # noqa: PTH112
        part = PartFile(place, handles)
        return FolderDump([RankParts([part], None, [], [])], handles)
    folders = _find_ranks(place)
    ranks: list[RankParts] = []
    errors: list[DumpError] = []
    for folder in folders:
        rank = _open_rank(folder, handles, errors)
        if rank is not None:
            ranks.append(rank)
    if not ranks:
        raise _choose(errors, place)
    return FolderDump(ranks, handles, [*map(str, errors), *_describe_absent(place, ranks)])


def _find_ranks(place: Path) -> list[Path]:
    try:
        names = sorted(child.name for child in place.iterdir())
    except OSError as error:
        raise DumpError(f"{place} cannot be read: {error.strerror}") from error
    ranks = [place / name for name in names if layout.RANK_FOLDER.fullmatch(name) and (place / name).is_dir()]
    if ranks:
        return ranks
    if any(name == layout.RUN_FILE or layout.PART_FILE.fullmatch(name) for name in names):
        return [place]
    what = "is empty" if not names else "holds no dump"
    raise DumpForeign(f"the folder {place} {what}: name the folder that `capture` wrote")


def _describe_absent(place: Path, ranks: Sequence[RankParts]) -> list[str]:
    present = {rank.info.rank for rank in ranks}
    world = max(rank.info.world for rank in ranks)
    absent = [str(number) for number in range(min(world, len(present) + 9)) if number not in present]
    if not absent or layout.RANK_FOLDER.fullmatch(place.name):
        return []
    shown = ", ".join(absent[:8]) + (", ..." if absent[8:] else "")
    return [f"{place} has {len(present)} of {world} ranks; missing: {shown}"]


def _open_rank(folder: Path, handles: Handles, errors: list[DumpError]) -> RankParts | None:
    try:
        paths = sorted(folder.iterdir())
    except OSError as error:
        errors.append(DumpError(f"{folder} cannot be read: {error.strerror}"))
        return None
    parts, broken = _open_parts((path for path in paths if layout.PART_FILE.fullmatch(path.name)), handles)
    run, trouble = _try_run(folder)
    if not parts and (run is None or broken):
        errors += broken or trouble or [DumpDamaged(f"{folder} holds no finished file")]
        return None
    points, notes = read_series(folder)
    notes += [str(error) for error in [*broken, *trouble]]
    notes += [
        f"{path} is unfinished: its writer was stopped, or is still at work; its tensors are not shown"
        for path in paths
        if path.name.endswith(".h5" + layout.UNFINISHED)
    ]
    return RankParts(parts, run, points, [*notes, *_describe_gaps(folder, parts, broken, run)])


def _open_parts(paths: Iterable[Path], handles: Handles) -> tuple[list[PartFile], list[DumpError]]:
    parts, broken = [], []
    for path in paths:
        try:
            parts.append(PartFile(path, handles))
        except DumpNotFound:  # gone since it was listed: overwritten by a new run
            continue
        except DumpError as error:
            broken.append(error)
    return sorted(parts, key=lambda part: part.sequence), broken


def _try_run(folder: Path) -> tuple[Run | None, list[DumpError]]:
    try:
        return read_run(folder), []
    except DumpError as error:
        return None, [error]


def _describe_gaps(folder: Path, parts: Sequence[PartFile], broken: Sequence[DumpError], run: Run | None) -> list[str]:
    notes = []
    present = {part.sequence: part for part in parts}
    expected = max([run.parts if run else 0, *(number + 1 for number in present)])
    first = min(present, default=0) if run is not None and run.keep is not None else 0
    missing = expected - first - len(present)
    if missing > len(broken):
        notes.append(f"{folder}: {missing} of {expected} files are missing{_describe_place(present)}")
    if run is not None and not run.closed:
        notes.append(f"{folder}: the capture was not closed, later steps may be missing")
    return notes


def _describe_place(present: dict[int, PartFile]) -> str:
    first = next(number for number in range(len(present) + 1) if number not in present)
    before = [part for number, part in present.items() if number < first]
    after = [part for number, part in present.items() if number > first]
    text = f", the first after {before[-1].path.name}" if before else ", the first at the start"
    return text + (f" and before {after[0].path.name}" if after else "")


def _choose(errors: Sequence[DumpError], place: Path) -> DumpError:
    """The error to raise for a dump of which nothing can be read: the one that says most."""
    for error in errors:
        if not isinstance(error, (DumpDamaged, DumpForeign)):
            return error
    return errors[0] if errors else DumpForeign(f"the folder {place} holds no dump")
