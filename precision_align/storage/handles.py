"""Files on disk as this package opens them: their mode, HDF5 without locks where locks fail, few open at a time."""

from __future__ import annotations

import os
import stat
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from threading import RLock
from typing import Any

import numpy as np

from precision_align.core.dtypes import Array
from precision_align.core.errors import DumpDamaged, DumpError, DumpForeign, DumpNotFound
from precision_align.storage import layout
from precision_align.storage.mapping import MappedFile
from precision_align.storage.remote import RemoteBytes, RemoteFile, is_remote

FILE_MODE = 0o640
_SIGNATURE = b"\x89HDF\r\n\x1a\n"
# What h5py raises on a file whose metadata makes no sense.
BROKEN = (
    OSError,
    RuntimeError,
    KeyError,
    ValueError,
    TypeError,
    IndexError,
    AttributeError,
    OverflowError,
    MemoryError,
)


def create_file(path: Path, flags: int = 0) -> int:
    """Open a file for writing, made with mode 0640 if it is new; a file descriptor. Raises OSError."""
    descriptor = os.open(path, os.O_CREAT | (flags or os.O_WRONLY), FILE_MODE)
    with suppress(OSError):  # some network file systems have no modes
        os.fchmod(descriptor, FILE_MODE)
    return descriptor


def sync_path(path: Path) -> None:
    """Wait until a file's data, or a folder's names, are on the medium itself. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def open_hdf5(path: Path | RemoteFile, mode: str, **options: Any) -> Any:
    """An h5py file; without locks where the file system refuses them (Lustre, some NFS, read-only mounts).

    That is safe here: a file is written by one process under a name of its own, and never changes after its rename.
    """
    import h5py  # 30 ms and 12 MB, which a comparison of other tools' files does without

    try:
        return h5py.File(path, mode, **options)
    except OSError as error:
        if "lock" not in str(error).lower():
            raise
        return h5py.File(path, mode, locking=False, **options)


def write_table(file: Any, name: str, table: Array) -> None:
    """What ``file.create_dataset(name, data=table)`` does, at a quarter of its cost: a type of many columns takes HDF5
    half a millisecond to make, with the interpreter's lock held."""
    from h5py import h5d, h5s

    kind, plain = _make_types(table.dtype)
    dataset = h5d.create(file.id, name.encode("ascii"), kind, h5s.create_simple(table.shape), plain)
    if table.size:
        dataset.write(h5s.ALL, h5s.ALL, table, kind)


def open_table(file: Any, name: str, expected: np.dtype[Any] | None = None) -> tuple[Any, np.dtype[Any]]:
    """A dataset, low-level, and the type of its rows: ``expected`` itself where it is that, as HDF5 can tell at a
    hundredth of what a type of many columns takes to make. Raises KeyError and what else is in ``BROKEN``."""
    from h5py import h5d

    dataset = h5d.open(file.id, name.encode("ascii"))
    kind = dataset.get_type()
    return dataset, expected if expected is not None and kind.equal(_make_types(expected)[0]) else kind.dtype


def read_table(dataset: Any, dtype: np.dtype[Any]) -> Array:
    """What ``dataset[...]`` gives, of what :func:`open_table` gave."""
    from h5py import h5s

    table = np.zeros(dataset.shape, dtype=dtype)
    if table.size:
        dataset.read(h5s.ALL, h5s.ALL, table)
    return table


def write_attributes(file: Any, values: Mapping[str, Any]) -> None:
    """What ``file.attrs[name] = value`` does for each, at a fifth of its cost."""
    from h5py import h5a, h5s, string_dtype

    for name, value in values.items():
        array = np.asarray(value, dtype=string_dtype() if isinstance(value, str) else None)
        kind, memory = _make_attribute_types(array.dtype.kind)
        h5a.create(file.id, name.encode("ascii"), kind, h5s.create(h5s.SCALAR)).write(array, memory)


@cache
def _make_attribute_types(kind: str) -> tuple[Any, Any]:
    """The HDF5 types of an attribute and of what NumPy holds it in; ``kind``: that of NumPy's type, "O" for a text."""
    from h5py import h5t, string_dtype

    dtype = string_dtype() if kind == "O" else np.dtype({"b": "?", "i": "i8"}[kind])
    return h5t.py_create(dtype, logical=True), h5t.py_create(dtype)


@cache
def _make_types(dtype: np.dtype[Any]) -> tuple[Any, Any]:
    """The HDF5 type of rows, and the properties of a dataset without a time stamp: equal files for equal contents."""
    from h5py import h5p, h5t

    plain = h5p.create(h5p.DATASET_CREATE)
    plain.set_obj_track_times(False)
    return h5t.py_create(dtype, logical=True), plain


def open_file(path: Path, remote: RemoteFile | None = None) -> Any:
    """An h5py file for reading. Raises DumpNotFound, DumpForeign, DumpDamaged, DumpError."""
    if remote is None:
        _check_signature(path)
    elif remote.read_range(0, min(len(_SIGNATURE), remote.size)).tobytes() != _SIGNATURE:
        raise DumpForeign(f"{path} is not a dump: it is not an HDF5 file; name the folder that `capture` wrote")
    try:
        return open_hdf5(path, "r") if remote is None else open_hdf5(remote, "r")
    except BROKEN as error:
        raise DumpDamaged(f"{path} is truncated or damaged: {first_line(error)}; record it again") from error


def _check_signature(path: Path) -> None:
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # opening a pipe would wait for ever
            raise DumpForeign(f"{path} is neither a file nor a folder; name the folder that `capture` wrote")
        with path.open("rb") as file:
            head = file.read(len(_SIGNATURE))
    except FileNotFoundError as error:
        raise DumpNotFound(f"there is no dump at {path}") from error
    except (OSError, ValueError) as error:
        raise DumpError(f"{path} cannot be read: {first_line(error)}") from error
    if head != _SIGNATURE:
        if layout.PART_FILE.fullmatch(path.name):
            raise DumpDamaged(f"{path} has lost its first bytes; record it again")
        raise DumpForeign(f"{path} is not a dump: it is not an HDF5 file; name the folder that `capture` wrote")


def first_line(error: BaseException) -> str:
    """The first line of an error's text; HDF5 writes whole paragraphs."""
    return str(error).strip().split("\n")[0] or type(error).__name__


class Handles:
    """Open HDF5 files and mappings, the least recently used closed beyond ``limit``. One instance serves one dump."""

    def __init__(self, limit: int = 4) -> None:
        self._limit = limit
        self._files: OrderedDict[Path, Any] = OrderedDict()
        self._maps: OrderedDict[Path, MappedFile] = OrderedDict()
        self._last: tuple[Path, MappedFile] | None = None  # of the maps, the one used last
        self._remote: dict[Path, RemoteFile] = {}
        self._lock = RLock()

    @contextmanager
    def open(self, path: Path) -> Iterator[Any]:
        """The open file, valid inside the block. Raises DumpNotFound, DumpForeign, DumpDamaged, DumpError."""
        with self._lock:
            if path not in self._files:
                self._files[path] = open_file(path, self._find_remote(path))
                while len(self._files) > self._limit:
                    self._files.popitem(last=False)[1].close()
            self._files.move_to_end(path)
            yield self._files[path]

    def _find_remote(self, path: Path) -> RemoteFile | None:
        """The file behind an address; its blocks outlive the h5py file."""
        if is_remote(path) and path not in self._remote:
            try:
                self._remote[path] = RemoteFile(path)
            except FileNotFoundError as error:
                raise DumpNotFound(f"there is no dump at {path}") from error
        return self._remote.get(path)

    def map(self, path: Path) -> MappedFile | RemoteBytes:
        """The bytes of a file; use it at once, views of it stay valid. Raises OSError."""
        last = self._last
        if last is not None and last[0] is path:
            return last[1]
        with self._lock:
            remote = self._find_remote(path)
            return RemoteBytes(remote) if remote is not None else self._map(path)

    def _map(self, path: Path) -> MappedFile:
        if self._last is not None and self._last[0] != path:
            self._last[1].release()  # a walk has gone on to the next file: the pages of this one need not stay
        if path not in self._maps:
            self._maps[path] = MappedFile(path)
            while len(self._maps) > self._limit:
                self._maps.popitem(last=False)[1].close()
        self._maps.move_to_end(path)
        self._last = path, self._maps[path]
        return self._maps[path]

    def close(self) -> None:
        """Close all of them; the next use opens again."""
        with self._lock:
            self._last = None
            while self._maps:
                self._maps.popitem()[1].close()
            while self._files:
                self._files.popitem()[1].close()
