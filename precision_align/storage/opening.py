"""Opening a dump, whoever wrote it."""

from __future__ import annotations

import os
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from precision_align.core.errors import UsageError
from precision_align.storage import layout
from precision_align.storage.base import Dump
from precision_align.storage.foreign.folders import find_files, open_files
from precision_align.storage.foreign.msprobe import find_places, open_msprobe
from precision_align.storage.foreign.naming import Naming, read_naming
from precision_align.storage.remote import find_place, is_remote, translating

if TYPE_CHECKING:
    from precision_align.storage.folderdumps import FolderDump


def open_dump(path: str | os.PathLike[str], naming: Naming | str | os.PathLike[str] | None = None) -> Dump:
    """Open a dump for reading; a context manager.

    The parts of all ranks are merged. Parts that are missing or cannot be read are listed in ``notes`` as long as one
    can be read. Recordings of other tools open too: the folder of an msprobe dump (or of one of its steps or ranks),
    and .npy, .npz, .pt and .safetensors files, one or a folder of them; ``naming`` says what their tensors are: a
    pattern such as "{scope}.{role}.{path}", or the path of a TOML file (see
    :mod:`precision_align.storage.foreign.naming`). A dump of ours may lie behind an address that fsspec knows, such as
    "s3://bucket/run" (see :mod:`precision_align.storage.remote`).

    Raises DumpNotFound, DumpForeign (nothing here knows the format), DumpDamaged, SchemaTooNew, UsageError (for a
    naming rule), Unavailable (for an address that needs a package).
    """
    place = find_place(path)
    foreign = _open_foreign(place, naming)
    if foreign is not None:
        return foreign
    if naming is not None:
        raise UsageError(f"a naming rule is for files of other tools, and {place} holds none that is known")
    return _open_ours(place)


def open_side(path: str | os.PathLike[str], naming: Naming | str | os.PathLike[str] | None = None) -> Dump:
    """As :func:`open_dump`, for one of two sides that share a rule: it does not matter to a dump of ours."""
    place = find_place(path)
    foreign = _open_foreign(place, naming)
    return _open_ours(place) if foreign is None else foreign


def _open_ours(place: Path) -> Dump:
    """Behind an address every request may fail in its back end's own way, the first for want of credentials."""
    with translating(place) if is_remote(place) else nullcontext():
        return open_own(place)


def _open_foreign(place: Path, naming: Naming | str | os.PathLike[str] | None) -> Dump | None:
    """A recording of another tool, or None where it is a dump of ours or nothing that is known."""
    rule = None if naming is None else read_naming(naming)
    if is_remote(place):
        return None
    try:
        if place.is_file():
            files = find_files(place)
        elif not place.is_dir() or _holds_ours(place):
            return None
        else:
            places = find_places(place)
            if places:
                return open_msprobe(place, places)
            files = find_files(place)
    except (OSError, ValueError):  # an unreadable folder, or a name that no file can have: told by open_own
        return None
    return open_files(place, files, rule) if files else None


def _holds_ours(place: Path) -> bool:
    def is_ours(name: str) -> bool:
        return name == layout.RUN_FILE or layout.PART_FILE.fullmatch(name) is not None

    children = list(place.iterdir())
    ranks = [child for child in children if layout.RANK_FOLDER.fullmatch(child.name) and child.is_dir()]
    inside = (name.name for rank in ranks for name in rank.iterdir())
    return any(is_ours(child.name) for child in children) or any(is_ours(name) for name in inside)


def open_own(place: Path) -> FolderDump:
    """A dump that this package wrote; as :func:`open_dump`."""
    from precision_align.storage.owndumps import open_folder  # recordings of other tools do without

    return open_folder(place)
