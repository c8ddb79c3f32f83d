"""The packed payloads of one file, written as they come."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any, Callable

import numpy as np

from precision_align.core.dtypes import Array
from precision_align.storage.layout import ALIGNMENT

# Unfiltered chunks written directly cost as much as a raw write from 1 MiB up (docs: facts on the write path); the
# last one is padded, so larger chunks would only make small files larger.
CHUNK = 1 << 20

# Payloads leave this much of the file system free: it is shared with the training's own checkpoints and logs.
_RESERVE_BYTES = 16 << 20
_RESERVE_SHARE = 0.02

_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)


def is_disk_full(error: BaseException) -> bool:
    """Whether an error says that the disk or the quota is full; HDF5 sometimes only says so in its text."""
    return getattr(error, "errno", None) in _DISK_FULL or any(f"errno = {code}" in str(error) for code in _DISK_FULL)


def require_room(folder: Path, nbytes: int) -> None:
    """Raise OSError(ENOSPC) before HDF5 meets a full disk in the middle of its own metadata."""
    found = os.statvfs(folder)
    if not found.f_blocks:  # a file system that does not tell
        return
    free = found.f_bavail * found.f_frsize
    reserve = min(_RESERVE_BYTES, int(found.f_blocks * found.f_frsize * _RESERVE_SHARE))
    if free < nbytes + reserve:
        raise OSError(
            errno.ENOSPC, f"{free} bytes are free, {nbytes} more would leave less than {reserve}", str(folder)
        )


class Blob:
    """Appends to the dataset ``blob`` (uint8, 1-D) of a file that ``open_file`` opens when the first chunk is full."""

    def __init__(self, folder: Path, open_file: Callable[[], Any]) -> None:
        self._folder = folder
        self._open_file = open_file
        self._dataset: Any = None
        self._staging = np.zeros(CHUNK, dtype=np.uint8)
        self._known: dict[bytes, int] = {}
        self.size = 0

    def append(self, data: Array, digest: bytes) -> int:
        """The offset of uint8[n], aligned to 64 bytes; bytes of the same hash and length are stored once."""
        name = digest + len(data).to_bytes(8, "little")
        if name not in self._known:
            self._write(np.zeros(-self.size % ALIGNMENT, dtype=np.uint8))
            self._known[name] = self.size
            self._write(data)
        return self._known[name]

    def _write(self, data: Array) -> None:
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
        require_room(self._folder, CHUNK)
        start = self.size // CHUNK * CHUNK
        if self._dataset is None:
            file = self._open_file()
            self._dataset = file.create_dataset("blob", shape=(0,), maxshape=(None,), chunks=(CHUNK,), dtype="u1")
        self._dataset.resize((start + CHUNK,))
        self._dataset.id.write_direct_chunk((start,), chunk)

    def finish(self) -> None:
        """Write what is left and give the dataset its exact length."""
        used = self.size % CHUNK
        if self._dataset is None:
            require_room(self._folder, used)
            self._open_file().create_dataset("blob", data=self._staging[:used])
            return
        if used:
            self._staging[used:] = 0
            self._spill(self._staging)
            self._dataset.resize((self.size,))
