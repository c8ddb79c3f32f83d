"""Who may write into a folder: the rules of a fresh dump, of ``overwrite`` and of ``append``."""

from __future__ import annotations

import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from precision_align.core.errors import DumpError, PrecisionAlignError, StorageFull, UsageError
from precision_align.core.records import RunInfo
from precision_align.storage import certificates, layout
from precision_align.storage.blobs import is_disk_full
from precision_align.storage.files import PartFile
from precision_align.storage.runs import Run, read_run
from precision_align.storage.texts import encode_value


@dataclass(frozen=True)
class Start:
    """Where a sink begins: its rank's folder, the number of its first file, and the notes of the run it continues."""

    folder: Path
    sequence: int = 0
    notes: tuple[str, ...] = ()


def is_ours(path: Path) -> bool:
    """Whether a file in a rank folder has a name that only this package gives."""
    name = path.name[: -len(layout.UNFINISHED)] if path.name.endswith(layout.UNFINISHED) else path.name
    known = name in (layout.RUN_FILE, layout.SERIES_FILE) or layout.PART_FILE.fullmatch(name) is not None
    return known and not path.is_dir()


def list_parts(folder: Path) -> list[Path]:
    """The finished files of a rank folder, by name."""
    return sorted(path for path in folder.iterdir() if layout.PART_FILE.fullmatch(path.name))


def prepare_folder(folder: Path, info: RunInfo, *, overwrite: bool, append: bool) -> Start:
    """Make the folder of a rank ready. Raises UsageError where it may not be used, StorageFull.

    ``overwrite`` deletes files that carry our names and refuses anything else; ``append`` wants the same modules and
    the same capture settings. Other ranks of the same run may have been here first. The files of ranks that the new
    run does not have are removed by its rank 0.
    """
    if overwrite and append:
        raise UsageError("overwrite and append exclude each other: choose one")
    try:
        return _prepare(folder, info, overwrite, append)
    except PrecisionAlignError:
        raise
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        if is_disk_full(error):
            raise StorageFull(f"no room for a dump in {folder}: {reason}; free some or choose another") from error
        raise UsageError(f"{folder} cannot be written: {reason}; choose another folder") from error


def _prepare(folder: Path, info: RunInfo, overwrite: bool, append: bool) -> Start:
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is a file: a dump is a folder, choose another name")
    own = folder / layout.name_rank(info.rank)
    ranks, foreign = _look_into(folder) if folder.exists() else ([], [])
    if foreign:
        raise UsageError(
            f"{folder} holds files that are not part of a dump ({foreign[0].name}{', ...' if foreign[1:] else ''}): "
            "choose an empty folder"
        )
    own.mkdir(parents=True, exist_ok=True)
    if overwrite:
        _clear(own, ranks, info)
    elif append:
        return _continue(own, info)
    elif _is_taken(own, ranks, info):
        raise UsageError(f"{folder} already holds a dump: choose another folder, or overwrite, or append to it")
    return Start(own)


def _look_into(folder: Path) -> tuple[list[Path], list[Path]]:
    ranks, foreign = [], []
    for path in sorted(folder.iterdir()):
        if layout.RANK_FOLDER.fullmatch(path.name) and path.is_dir():
            ranks.append(path)
            foreign += [file for file in sorted(path.iterdir()) if not _may_go(file)]
        elif path.name != "lost+found":  # the root of a fresh file system
            foreign.append(path)
    return ranks, foreign


def _may_go(path: Path) -> bool:
    """Whether a file belongs to a dump: certificates of one that is overwritten would speak of other calls."""
    return is_ours(path) or path.suffix == certificates.SUFFIX


def _is_taken(own: Path, ranks: list[Path], info: RunInfo) -> bool:
    others = [] if info.world > 1 else ranks
    return any(any(rank.iterdir()) for rank in [own, *others])


def _clear(own: Path, ranks: list[Path], info: RunInfo) -> None:
    for path in own.iterdir():
        path.unlink()
    for rank in ranks:
        if info.rank == 0 and int(rank.name[4:]) >= max(info.world, 1):
            with suppress(FileNotFoundError):
                shutil.rmtree(rank)


def _continue(own: Path, info: RunInfo) -> Start:
    run, sequences = _find_run(own), [part.sequence for part in _readable_parts(own)]
    if run is None:
        return Start(own)
    for name in ("modules", "capture"):
        if encode_value(getattr(run.info, name)) != encode_value(getattr(info, name)):
            raise UsageError(
                f"{own.parent} was recorded with other {name}: append continues the same run only, choose another"
            )
    following = max([run.parts, len(list_parts(own)), *(number + 1 for number in sequences)])
    return Start(own, following, tuple(run.info.notes))


def _find_run(own: Path) -> Run | None:
    try:
        run = read_run(own)
    except DumpError:
        run = None
    if run is not None:
        return run
    infos = [part.info for part in _readable_parts(own)]
    return Run(infos[-1], False, len(infos)) if infos else None


def _readable_parts(own: Path) -> list[PartFile]:
    parts = []
    for path in list_parts(own):
        with suppress(DumpError):
            parts.append(PartFile(path))
    return sorted(parts, key=lambda part: part.sequence)
