"""Dumps on object stores and other places with an address, such as ``s3://bucket/run``, read over fsspec.

Finished files never change, so their bytes are kept in blocks: small reads share the request of their block, since a
dump's payloads lie packed in the order in which they were recorded. Blocks that miss next to each other come with one
request, of a large payload just what is missing, and whoever reads on in order gets ever more with each request.
Credentials and endpoints are fsspec's: its configuration files and environment variables, such as
FSSPEC_S3_ENDPOINT_URL.
"""

from __future__ import annotations

import gc
import io
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from precision_align.core.dtypes import Array
from precision_align.core.errors import DumpError, PrecisionAlignError, Unavailable

# One request costs some ten milliseconds on an object store, about what a mebibyte takes on the way.
BLOCK_BYTES = 1 << 20
# Of all files of one dump, per file: a step's small tensors fit, and memory stays small beside a training's.
_KEPT_BLOCKS = 64
# A reader that goes on where it was is given ever more at once, up to this.
_MOST_AHEAD = 16


def find_place(path: Any) -> Any:
    """A ``pathlib.Path``, or for an address its like over fsspec. Raises Unavailable, DumpError for a bad address."""
    if "://" not in str(path):
        return Path(path)
    try:
        from upath import UPath
    except ImportError as error:
        raise Unavailable(f"{path} needs fsspec: pip install 'precision-align[remote]'") from error
    with translating(path):
        return UPath(str(path))


def is_remote(place: Any) -> bool:
    """Whether :func:`find_place` gave an address."""
    return not isinstance(place, Path)


def find_file(place: Any) -> Any:
    """What h5py opens: the path itself, or the file behind an address. Raises FileNotFoundError, DumpError."""
    return RemoteFile(place) if is_remote(place) else place


def list_stamps(place: Any) -> list[tuple[str, int, str]]:
    """(address, size, version) of all files under an address: what tells that they are still the same."""
    with translating(place):
        found = place.fs.find(place.path, detail=True)
    return sorted(
        (name, int(file.get("size") or 0), str(file.get("ETag") or file.get("mtime") or file.get("LastModified") or ""))
        for name, file in found.items()
    )


@contextmanager
def translating(place: Any) -> Iterator[None]:
    """fsspec's back ends raise errors of their own kinds: all become DumpError, or Unavailable for a missing one."""
    try:
        yield
    except ImportError as error:
        raise Unavailable(f"{place} needs another package: {error}") from error
    except (PrecisionAlignError, FileNotFoundError):
        raise
    except Exception as error:
        raise DumpError(f"{place} cannot be read: {type(error).__name__}: {error}") from error


@contextmanager
def collector_paused() -> Iterator[None]:
    """While h5py reads from a store. It holds its lock then, and fsspec works in a thread of its own: should the cyclic
    collector run there and meet an h5py object, that thread waits for the lock, and the lock's holder for that thread.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


class RemoteFile(io.RawIOBase):
    """One finished file behind an address: a binary file for h5py, and :meth:`read_range` for payloads.

    Raises FileNotFoundError and DumpError where the store does.
    """

    def __init__(self, place: Any) -> None:
        super().__init__()
        self._fs, self._path, self._place = place.fs, place.path, place
        with translating(place):
            self.size = int(self._fs.info(self._path)["size"])
        self._blocks: OrderedDict[int, bytes] = OrderedDict()
        self._position = 0
        self._end = self._ahead = 0

    def read_range(self, offset: int, nbytes: int) -> Array:
        """uint8[nbytes] in fresh memory. Raises OSError where that lies outside the file."""
        if offset < 0 or nbytes < 0 or offset + nbytes > self.size:
            raise OSError(f"bytes {offset} to {offset + nbytes} lie outside the file, which has {self.size}")
        data = np.empty(nbytes, dtype=np.uint8)
        if not nbytes:
            return data
        first, last = offset // BLOCK_BYTES, (offset + nbytes - 1) // BLOCK_BYTES
        for start, stop in self._find_pieces(first, last):
            content, begin = self._get(start, stop), start * BLOCK_BYTES
            low, high = max(offset, begin), min(offset + nbytes, begin + len(content))
            data[low - offset : high - offset] = np.frombuffer(content, np.uint8)[low - begin : high - begin]
        return data

    def _find_pieces(self, first: int, last: int) -> Iterator[tuple[int, int]]:
        """[start, stop) of blocks: each that is kept alone, each run of those that are not together."""
        start = first
        for block in range(first, last + 1):
            if block in self._blocks:
                if start < block:
                    yield start, block
                yield block, block + 1
                start = block + 1
        if start <= last:
            yield start, last + 1

    def _get(self, start: int, stop: int) -> bytes:
        if start in self._blocks:
            self._blocks.move_to_end(start)
            return self._blocks[start]
        self._ahead = min(max(1, 2 * self._ahead), _MOST_AHEAD) if start == self._end else 0
        while stop * BLOCK_BYTES < self.size and stop < start + self._ahead and stop not in self._blocks:
            stop += 1
        self._end = stop
        end = min(stop * BLOCK_BYTES, self.size)
        with translating(self._place), collector_paused():
            content: bytes = self._fs.cat_file(self._path, start=start * BLOCK_BYTES, end=end)
        if len(content) != end - start * BLOCK_BYTES:
            raise DumpError(f"{self._place} is shorter than it was: {len(content)} bytes came; try again")
        kept = range(start, stop) if stop - start <= _KEPT_BLOCKS // 2 else (stop - 1,)
        for block in kept:  # of a large payload only the end, where the next one begins
            at = (block - start) * BLOCK_BYTES
            self._blocks[block] = content[at : at + BLOCK_BYTES]
        while len(self._blocks) > _KEPT_BLOCKS:
            self._blocks.popitem(last=False)
        return content

    # What h5py asks of a file

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self.size}[whence]
        self._position = base + offset
        return self._position

    def tell(self) -> int:
        return self._position

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        count = max(0, min(len(view), self.size - self._position))
        view[:count] = self.read_range(self._position, count).data
        self._position += count
        return count


class RemoteBytes:
    """As :class:`~precision_align.storage.mapping.MappedFile`, for a file that cannot be mapped."""

    def __init__(self, file: RemoteFile) -> None:
        self._file = file

    def view(self, offset: int, nbytes: int) -> Array:
        """Nothing is mapped: a reader then asks for a copy. Raises OSError always."""
        return self.show(offset, nbytes, np.dtype(np.uint8), (nbytes,))

    def show(self, offset: int, nbytes: int, word: np.dtype[Any], shape: tuple[int, ...]) -> Array:
        """Likewise."""
        raise OSError("a file on a store is not mapped")

    def read(self, offset: int, nbytes: int) -> Array:
        """uint8[nbytes] in fresh memory. Raises OSError, DumpError."""
        return self._file.read_range(offset, nbytes)

    def release(self) -> None:
        """Blocks are few: they stay."""

    def close(self) -> None:
        """The file is its owner's."""
