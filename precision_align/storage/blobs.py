"""The packed payloads of one file, written as they come."""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Callable

import numpy as np

from precision_align.core.dtypes import Array
from precision_align.storage.handles import write_table
from precision_align.storage.layout import ALIGNMENT

# Unfiltered chunks written directly cost as much as a raw write from 1 MiB up (docs: facts on the write path); the
# last one is padded, so larger chunks would only make small files larger.
CHUNK = 1 << 20

# Payloads leave this much of the file system free: it is shared with the training's own checkpoints and logs.
_RESERVE_BYTES = 16 << 20
_RESERVE_SHARE = 0.02

# Larger pieces are copied without the interpreter's lock, which takes a few calls more.
_SMALL = 1 << 15

_ZEROS = np.zeros(ALIGNMENT, dtype=np.uint8)
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)


def is_disk_full(error: BaseException) -> bool:
    """Whether an error says that the disk or the quota is full; HDF5 sometimes only says so in its text."""
    return getattr(error, "errno", None) in _DISK_FULL or any(f"errno = {code}" in str(error) for code in _DISK_FULL)


def require_room(folder: Path, nbytes: int, reserve: int = 0) -> None:
    """Raise OSError(ENOSPC) before HDF5 meets a full disk in the middle of its own metadata.

    ``reserve``: how many bytes must stay free besides; the larger of this and a small reserve of our own counts.
    """
    found = os.statvfs(folder)
    if not found.f_blocks:  # a file system that does not tell
        return
    free = found.f_bavail * found.f_frsize
    reserve = max(reserve, min(_RESERVE_BYTES, int(found.f_blocks * found.f_frsize * _RESERVE_SHARE)))
    if free < nbytes + reserve:
        raise OSError(
            errno.ENOSPC, f"{free} bytes are free, {nbytes} more would leave less than {reserve}", str(folder)
        )


class _Memory:
    """So many bytes at an address, for NumPy to look at; who asks keeps them alive."""

    def __init__(self, address: int, count: int) -> None:
        self.__array_interface__ = {"data": (address, True), "shape": (count,), "typestr": "|u1", "version": 3}


class Blob:
    """Appends to a 1-D dataset of a file that ``open_file`` opens when the first chunk is full.

    ``name`` and ``itemsize``: of the dataset; ``filters``: what h5py's ``create_dataset`` takes for a codec, or
    nothing; ``reserve``: bytes of the file system to leave free. Unfiltered chunks follow each other in the file (see
    ``META_BLOCK`` in :mod:`~precision_align.storage.parts`), so that readers can map any payload.
    """

    def __init__(
        self,
        folder: Path,
        open_file: Callable[[], Any],
        *,
        name: str = "blob",
        itemsize: int = 1,
        filters: Mapping[str, Any] | None = None,
        reserve: int = 0,
    ) -> None:
        self._folder, self._open_file = folder, open_file
        self._name, self._word = name, np.dtype(f"<u{itemsize}")
        self._filters = dict(filters or {})
        self._reserve = reserve
        self._dataset: Any = None
        self._staging = np.empty(CHUNK, dtype=np.uint8)
        self._start = int(self._staging.__array_interface__["data"][0])
        self._known: dict[tuple[bytes, int], int] = {}
        self.size = 0

    def append(self, digest: bytes, address: int, count: int) -> int:
        """Take so many bytes from memory; the offset, aligned to 64 bytes. Those of a known hash are stored once."""
        name = (digest, count)
        found = self._known.get(name)
        if found is None:
            spare = -self.size % ALIGNMENT
            if spare:
                self._write(_ZEROS[:spare])
            found = self._known[name] = self.size
            used = found % CHUNK
            if count < _SMALL and used + count < CHUNK:
                ctypes.memmove(self._start + used, address, count)
                self.size += count
            else:
                self._write(np.asarray(_Memory(address, count)))
        return found

    def _write(self, data: Array) -> None:
        used, count = self.size % CHUNK, data.size
        if used + count < CHUNK:
            self._staging[used : used + count] = data
            self.size += count
            return
        while data.size:
            used = self.size % CHUNK
            taken = min(CHUNK - used, data.size)
            if taken == CHUNK:
                self._spill(data[:CHUNK])
            else:
                self._staging[used : used + taken] = data[:taken]
                if used + taken == CHUNK:
                    self._spill(self._staging)
            self.size += taken
            data = data[taken:]

    def _spill(self, chunk: Array) -> None:
        require_room(self._folder, CHUNK, self._reserve)
        width = self._word.itemsize
        start, count = self.size // CHUNK * CHUNK // width, CHUNK // width
        if self._dataset is None:
            self._dataset = self._open_file().create_dataset(
                self._name, shape=(0,), maxshape=(None,), chunks=(count,), dtype=self._word, **self._filters
            )
        self._dataset.resize((start + count,))
        if self._filters:
            self._dataset[start : start + count] = chunk.view(self._word)
        else:
            self._dataset.id.write_direct_chunk((start,), chunk)

    def finish(self) -> None:
        """Write what is left and give the dataset its exact length."""
        used = self.size % CHUNK
        if self._dataset is None and not self._filters:
            require_room(self._folder, used, self._reserve)
            write_table(self._open_file(), self._name, self._staging[:used].view(self._word))
            return
        if used:
            self._staging[used:] = 0
            self._spill(self._staging)
        if self._dataset is not None:
            self._dataset.resize((self.size // self._word.itemsize,))
