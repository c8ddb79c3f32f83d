"""Bytes of a finished file without HDF5: mapped without a copy, or read into fresh memory."""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from typing import Any, Optional

import numpy as np

from precision_align.core.dtypes import Array

# Mapped pages count as ours until they are let go; this much may be resident before earlier ones are.
RESIDENT_BYTES = 64 << 20
_BYTE = np.dtype(np.uint8)
_PREAD_BYTES = 1 << 30  # Linux transfers at most 2 GiB a call


class MappedFile:
    """One finished file. ``size`` in bytes, as it was when opened. Raises OSError.

    Views stay valid after :meth:`close`: they keep the mapping alive. Nobody may shorten the file meanwhile (finished
    dump files never change; deleting one is harmless).
    """

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
        self.size = os.fstat(self._descriptor).st_size
        self._map: Optional[mmap.mmap] = None
        self._bytes: Array = np.zeros(0, dtype=np.uint8)
        self._touched = 0

    def view(self, offset: int, nbytes: int) -> Array:
        """uint8[nbytes], read-only, without a copy. Raises OSError where mapping fails or the file is shorter."""
        return self.show(offset, nbytes, _BYTE, (nbytes,))

    def show(self, offset: int, nbytes: int, word: np.dtype[Any], shape: tuple[int, ...]) -> Array:
        """The same as an array, made in one step; raises ValueError where it would not have that size."""
        self._require(offset, nbytes)
        if not nbytes:
            return np.frombuffer(b"", dtype=word).reshape(shape)
        mapping = self._map or self._map_all()
        if self._touched > RESIDENT_BYTES:
            self.release()
        self._touched += nbytes
        words: Array = np.ndarray(shape, word, mapping, offset)
        if words.nbytes != nbytes:
            raise ValueError(f"{nbytes} bytes are no {word} of shape {shape}")
        return words

    def _map_all(self) -> mmap.mmap:
        if self._descriptor < 0:  # closed by another thread; -1 would map fresh memory
            raise OSError("the file is closed")
        mapping = self._map = mmap.mmap(self._descriptor, self.size, access=mmap.ACCESS_READ)
        self._bytes = np.frombuffer(mapping, dtype=np.uint8)
        self._close_descriptor()  # the mapping has one of its own
        return mapping

    def read(self, offset: int, nbytes: int) -> Array:
        """uint8[nbytes] in fresh memory. Raises OSError."""
        self._require(offset, nbytes)
        if self._map is not None:
            return self.view(offset, nbytes).copy()
        data = np.empty(nbytes, dtype=np.uint8)
        done = 0
        while done < nbytes:
            count = os.preadv(self._descriptor, [data[done : done + _PREAD_BYTES].data], offset + done)
            if not count:
                raise OSError(f"the file ends at byte {offset + done}, {nbytes - done} bytes too early")
            done += count
        return data

    def _require(self, offset: int, nbytes: int) -> None:
        if offset < 0 or nbytes < 0 or offset + nbytes > self.size:
            raise OSError(f"bytes {offset} to {offset + nbytes} lie outside the file, which has {self.size}")

    def release(self, offset: int = 0, nbytes: Optional[int] = None) -> None:
        """Let go of resident pages of a range (all); a later look at a view brings them back."""
        self._touched = 0
        if self._map is None or not hasattr(mmap, "MADV_DONTNEED"):
            return
        start = offset - offset % mmap.PAGESIZE
        length = (self.size if nbytes is None else offset + nbytes) - start
        self._map.madvise(mmap.MADV_DONTNEED, start, length)

    def close(self) -> None:
        """Let go of the file; views stay valid."""
        self.release()
        self._close_descriptor()
        self._map, self._bytes = None, np.zeros(0, dtype=np.uint8)

    def _close_descriptor(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = -1


def map_file(path: Path) -> mmap.mmap:
    """A whole file, read-only, as a buffer for arrays. Raises OSError, ValueError where it is empty."""
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
    try:
        return mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
    finally:
        os.close(descriptor)  # the mapping has one of its own


def find_mapping(view: Array) -> Optional[mmap.mmap]:
    """The file that an array shows a part of; None where that is memory, which has what no file has."""
    base: Any = view
    while isinstance(base, np.ndarray):
        base = base.base
    base = base.obj if isinstance(base, memoryview) else base
    return base if isinstance(base, mmap.mmap) and memoryview(base).readonly else None


def release_pages(view: Array) -> None:
    """Let go of the resident pages behind a view that ``map_payload`` gave; other arrays are left alone.

    A kernel that walks a tensor larger than memory calls this for each part that it is done with.
    """
    mapping = find_mapping(view)
    if mapping is None or not hasattr(mmap, "MADV_DONTNEED"):
        return
    start = int(view.ctypes.data) - int(np.frombuffer(mapping, dtype=np.uint8).ctypes.data)
    before = start % mmap.PAGESIZE
    mapping.madvise(mmap.MADV_DONTNEED, start - before, view.size * view.itemsize + before)


def _list_chunks(dataset: Any) -> list[Any]:
    """All chunks of a low-level dataset. Asked for one by one, each costs a walk through those before it."""
    found: list[Any] = []
    if hasattr(dataset, "chunk_iter"):  # h5py 3.8 with HDF5 1.14
        dataset.chunk_iter(found.append)
        return found
    return [dataset.get_chunk_info(number) for number in range(dataset.get_num_chunks())]


class Extents:
    """Where the bytes of a chunked or contiguous dataset lie in its file, as far as no filter is in the way."""

    def __init__(self, dataset: Any) -> None:
        self._chunk = 0
        self._offsets: Array = np.zeros(0, dtype=np.int64)
        self._first, self._size = -1, 0
        plan = dataset.id.get_create_plist()
        if plan.get_nfilters() or dataset.ndim != 1:
            return
        if dataset.chunks is None:
            offset = dataset.id.get_offset()
            self._chunk = max(dataset.size, 1) if offset is not None else 0
            self._offsets = np.array([offset or 0], dtype=np.int64)
            self._look_for_one_piece(dataset.size)
            return
        self._chunk = int(dataset.chunks[0])
        count = -(-dataset.size // self._chunk)
        self._offsets = np.full(count, -1, dtype=np.int64)
        for info in _list_chunks(dataset.id):
            place = info.chunk_offset[0] // self._chunk
            if info.filter_mask == 0 and place < count:
                self._offsets[place] = info.byte_offset
        self._look_for_one_piece(dataset.size)

    def _look_for_one_piece(self, size: int) -> None:
        """Whether all of it lies in one piece, as a writer that nobody disturbs leaves it: then places are a sum."""
        if self._chunk and len(self._offsets) and (np.diff(self._offsets) == self._chunk).all():
            self._first, self._size = int(self._offsets[0]), size

    def locate(self, start: int, nbytes: int) -> Optional[int]:
        """The place in the file of bytes that lie there in one piece, else None."""
        if self._first >= 0 and 0 <= start <= start + nbytes <= self._size:
            return self._first + start
        if not self._chunk or start < 0:
            return None
        first, last = start // self._chunk, max(start + nbytes - 1, start) // self._chunk
        if last >= len(self._offsets):
            return None
        found = self._offsets[first : last + 1]
        if found[0] < 0 or (first != last and (np.diff(found) != self._chunk).any()):
            return None
        return int(found[0]) + start - first * self._chunk
