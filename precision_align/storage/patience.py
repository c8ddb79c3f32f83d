"""A file for HDF5 that outlives a full disk."""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType
from typing import Any, Optional


class PatientFile:
    """A new file, written by one HDF5 file object; a context manager.

    HDF5 crashes the process, at its end at the latest, where the disk takes no more in the middle of its own metadata.
    So nothing ever fails here: what the disk does not take stays in memory and is read back from there, ``error`` says
    so, and leaving the block removes the file and raises that error. Whoever writes looks at ``error`` now and then.
    """

    def __init__(self, path: Path) -> None:
        self.error: Optional[OSError] = None
        self._path = path
        self._file = path.open("w+b", buffering=0)
        self._lost: list[tuple[int, bytes]] = []  # places and data, in the order they came
        self._place = 0

    def __enter__(self) -> PatientFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
        if self.error is not None:
            self._path.unlink()
            raise self.error

    def seek(self, place: int, whence: int = os.SEEK_SET) -> int:
        """As a file's."""
        if whence == os.SEEK_END:
            place += max([self._file.seek(0, os.SEEK_END), *(start + len(data) for start, data in self._lost)])
        self._place = place if whence != os.SEEK_CUR else self._place + place
        return self._place

    def tell(self) -> int:
        """As a file's."""
        return self._place

    def write(self, data: Any) -> int:
        """All of it, always."""
        rest = memoryview(data).cast("B")
        start, size = self._place, len(rest)
        try:
            while len(rest) and self.error is None:
                rest = rest[os.pwrite(self._file.fileno(), rest, start + size - len(rest)) :]
        except OSError as error:
            self.error = error
        if len(rest):
            self._lost.append((start + size - len(rest), bytes(rest)))
        self._place += size
        return size

    def read(self, size: int = -1) -> bytes:
        """As a file's."""
        place, end = self._place, self.seek(0, os.SEEK_END)
        self._place = place
        data = bytearray(size if size >= 0 else max(end - place, 0))
        return bytes(data[: self.readinto(data)])

    def readinto(self, buffer: Any) -> int:
        """As a file's, with what the disk did not take."""
        target = memoryview(buffer).cast("B")
        first, last = self._place, self._place + len(target)
        found = os.preadv(self._file.fileno(), [target], first)
        for start, data in self._lost:
            low, high = max(start, first), min(start + len(data), last)
            if low < high:
                target[low - first : high - first] = data[low - start : high - start]
                found = max(found, high - first)
        self._place += found
        return found

    def truncate(self, size: Optional[int] = None) -> int:
        """As a file's; making it longer may wait until something is written there."""
        size = self._place if size is None else size
        try:
            os.ftruncate(self._file.fileno(), size)
        except OSError as error:
            self.error = self.error or error
        return size

    def flush(self) -> None:
        """Nothing waits."""
