"""Weights by reference: a dump names the tensor of a checkpoint whose bits a parameter has, instead of a copy.

A model that starts from a checkpoint has its weights on disk already; each dump of its first step would hold them once
more. With ``weights_from`` a parameter or buffer that equals a tensor of the checkpoint (dtype, shape and hash) is kept
as file and name. Reading finds the file where it was, or under its name beside or inside the dump's folder, and
verifies the hash of what it reads.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Optional

from precision_align.core.dtypes import Array
from precision_align.core.errors import DumpDamaged, UsageError
from precision_align.core.records import TensorRecord
from precision_align.storage.foreign.arrays import Loader
from precision_align.storage.foreign.folders import READERS, find_files
from precision_align.storage.foreign.items import Unreadable
from precision_align.storage.hashing import digest_words
from precision_align.storage.mapping import RESIDENT_BYTES, release_pages
from precision_align.storage.remote import is_remote

# The record's ``extra`` under this name: {"file": absolute path, "name": the tensor's}.
EXTRA = "checkpoint"
# Smaller tensors are stored: a reference is hardly smaller.
REFERRED_BYTES = 4096
SUFFIXES = (".pt", ".pth", ".bin", ".safetensors")

Reference = Mapping[str, str]


class Checkpoint:
    """The tensors of a checkpoint file, or of all files in a folder (shards), by what they hold.

    Every tensor is hashed once, when this is made. Raises UsageError where there is no such file, DumpDamaged where one
    cannot be read.
    """

    def __init__(self, path: str) -> None:
        self._places: dict[tuple[bytes, str, tuple[int, ...]], Reference] = {}
        for file, name, load in _list_tensors(Path(path)):
            try:
                tensor = load()
            except Unreadable:  # no tensor that a parameter could equal
                continue
            if tensor.words.nbytes < REFERRED_BYTES:
                continue
            digest = digest_words(tensor.words, release_pages if tensor.words.nbytes > RESIDENT_BYTES else None)
            place = {"file": str(file.absolute()), "name": name}
            self._places.setdefault((digest, tensor.dtype, tensor.words.shape), place)

    def find(self, digest: bytes, dtype: str, shape: tuple[int, ...]) -> Optional[Reference]:
        """Where a tensor of this hash, dtype and shape stands, or None."""
        return self._places.get((digest, dtype, tuple(shape)))


def check_checkpoint(path: str) -> None:
    """Raise UsageError where there is no checkpoint at a path."""
    if not _find(Path(path)):
        known = ", ".join(SUFFIXES)
        raise UsageError(f"there is no checkpoint at {path}: name a file, or a folder of files ({known})")


def _find(place: Path) -> list[Path]:
    if place.is_file():
        return [place] if place.suffix in SUFFIXES else []
    return [file for file in find_files(place) if file.suffix in SUFFIXES] if place.is_dir() else []


def _list_tensors(place: Path) -> Iterator[tuple[Path, str, Loader]]:
    check_checkpoint(str(place))
    for file in _find(place):
        for name, load in _list_file(file).items():
            yield file, name, load


def _list_file(file: Path) -> Mapping[str, Loader]:
    return READERS[".pt" if file.suffix == ".bin" else file.suffix](file)


@lru_cache(maxsize=16)
def _list_known(file: Path, stamp: tuple[int, int]) -> Mapping[str, Loader]:
    """The tensors of a file that is read again and again; ``stamp``: another one is another file."""
    return _list_file(file)


def read_reference(record: TensorRecord, dump: Path) -> Optional[Array]:
    """The words of a record that refers to a checkpoint, read-only, not yet verified; None where it does not.

    ``dump``: a file of the dump. Raises DumpDamaged where the checkpoint is not found or has no such tensor any more.
    """
    reference: Any = record.extra.get(EXTRA)
    if not isinstance(reference, Mapping):
        return None
    file, name = _locate(Path(str(reference["file"])), dump), str(reference["name"])
    try:
        status = file.stat()
        tensor = _list_known(file, (status.st_size, status.st_mtime_ns))[name]()
    except (KeyError, Unreadable, OSError) as error:
        raise DumpDamaged(_describe_changed(record, file, name)) from error
    if (tensor.words.shape, tensor.dtype) != (record.shape, record.dtype):
        raise DumpDamaged(_describe_changed(record, file, name))
    return tensor.words


def verify_reference(record: TensorRecord, dump: Path, words: Array) -> None:
    """Raise DumpDamaged where the checkpoint holds something else by now."""
    if digest_words(words, release_pages if words.nbytes > RESIDENT_BYTES else None) != record.digest:
        reference = record.extra[EXTRA]
        file = _locate(Path(str(reference["file"])), dump)
        raise DumpDamaged(_describe_changed(record, file, str(reference["name"])))


def _locate(file: Path, dump: Path) -> Path:
    """Where it was, else under its name around the dump's file: the rank's folder, the dump, and what it lies in."""
    folders = [] if is_remote(dump) else list(dump.absolute().parents)[:3]
    for place in (file, *(folder / file.name for folder in folders)):
        if place.is_file():
            return place
    raise DumpDamaged(
        f"the checkpoint {file} is gone, to which {dump} refers for its weights: put it back, or a copy beside the "
        f"dump ({dump.parent.parent / file.name}), or record again"
    )


def _describe_changed(record: TensorRecord, file: Path, name: str) -> str:
    return (
        f"the checkpoint {file} has changed: its tensor {name!r} is not the {record.key.role} {record.key.path!r} of "
        f"{record.key.scope or 'the root'} that was recorded; put the old one back, or record again"
    )
