"""One finished file of a dump, read: its tables at once and verified, payloads and sketches when asked for."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np

from precision_align.core.dtypes import Array, dtype_of
from precision_align.core.errors import DumpDamaged, DumpError, DumpForeign, SchemaTooNew
from precision_align.core.records import Call, Point, RunInfo, TensorRecord
from precision_align.numerics.sketches import SKETCH_KIND
from precision_align.storage import layout
from precision_align.storage.checkpoints import read_reference, verify_reference
from precision_align.storage.compression import read_filtered
from precision_align.storage.handles import BROKEN, Handles, first_line, open_table, read_table
from precision_align.storage.hashing import DIGEST_KIND, DIGESTS, Release, bytes_of
from precision_align.storage.mapping import RESIDENT_BYTES, Extents, release_pages
from precision_align.storage.runs import require_known_schema
from precision_align.storage.tables import decode_info, fit_index, read_calls, read_points, read_record
from precision_align.storage.texts import TextReader, count_keys, decode_keys

# Larger tables are mapped; for smaller ones a read is cheaper than a mapping of their own.
_MAPPED_TABLE_BYTES = 1 << 20


class _Translation:
    """Turns what NumPy, h5py and our own decoding raise on nonsense into DumpDamaged. A class, because a generator
    would double what it costs to look up a small tensor."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, BROKEN) and not isinstance(error, DumpError):
            raise self.describe(error) from error

    def describe(self, error: BaseException) -> DumpDamaged:
        """What a reader is told of it."""
        return DumpDamaged(f"{self._path} is damaged: {first_line(error)}; record it again")


class PartFile:
    """A finished file. ``sequence`` counts the files of one rank from 0; ``keys`` are in the order of ``index``.

    Raises DumpForeign where it was not written by this package, SchemaTooNew, and DumpDamaged where a table does not
    fit its hash or the file is not complete.
    """

    def __init__(self, path: Path, handles: Handles | None = None) -> None:
        self.path = path
        self._handles = handles or Handles(1)
        self._translating = _Translation(path)
        self._sketches: Array | None = None
        self._verified: set[int] = set()
        self._blobs: dict[str, Extents] = {}
        try:
            with self._reading() as file:
                self._size = path.stat().st_size
                self._read(file)
        finally:
            if handles is None:
                self._handles.close()

    @contextmanager
    def _reading(self) -> Iterator[Any]:
        with self._handles.open(self.path) as file, self._translating:
            yield file

    def _read(self, file: Any) -> None:
        if str(file.attrs.get("format", "")) != layout.FORMAT:
            raise DumpForeign(f"{self.path} is an HDF5 file, but not a dump of this package")
        require_known_schema(self.path, file.attrs.get("schema_version"))
        if not file.attrs.get("complete", False):
            raise DumpDamaged(f"{self.path} is not complete: its writer was stopped; record it again")
        self._read_kinds(file)
        self._digests = json.loads(file.attrs["digests"])
        self.sequence = int(file.attrs["sequence"])
        self.distinct = bool(file.attrs.get("distinct", False))
        self.texts = TextReader(self._read_table(file, "strings").tobytes())
        self._info = self._read_table(file, "info")
        self._keys = self._read_table(file, "keys")
        self.index = self._read_table(file, "index")
        # columns that every look-up needs, several times cheaper to index than rows
        self._flags, self._offsets = self.index["flags"], self.index["offset"]
        self._stored, self._expanded = self.index["stored"], self.index["expanded"]
        self._calls = self._read_table(file, "calls")
        self._series = self._read_table(file, "series")
        num_keys = count_keys(self._keys)
        if num_keys != len(self.index):
            raise DumpDamaged(f"{self.path} has {num_keys} keys for {len(self.index)} tensors; record it again")

    def _read_kinds(self, file: Any) -> None:
        """Which hash and which sketch this file has; those of another kind than ours are never compared with ours."""
        kind = str(file.attrs.get("digest_kind", "blake2b"))
        if kind not in DIGESTS:
            raise SchemaTooNew(f"{self.path} has hashes of the unknown kind {kind!r}: upgrade precision-align")
        self._digest = DIGESTS[kind]
        self._digests_compare = kind == DIGEST_KIND
        self._sketches_compare = int(file.attrs.get("sketch_kind", 0)) == SKETCH_KIND

    @property
    def notes(self) -> list[str]:
        """What an older file cannot offer."""
        notes = []
        if not self._digests_compare:
            notes.append(f"{self.path} has hashes of an earlier kind: equal tensors are found by their bits instead")
        if not self._sketches_compare and (self.index["flags"] & layout.HAS_SKETCH).any():
            notes.append(f"{self.path} has sketches of an earlier kind, which are not compared: record it again")
        return notes

    def _read_table(self, file: Any, name: str) -> Array:
        dataset, dtype = open_table(file, name, layout.ROWS.get(name))
        nbytes = math.prod(dataset.shape) * dtype.itemsize
        if nbytes > self._size:  # a lie that would only fill the memory
            raise DumpDamaged(f"{self.path}: the table `{name}` is larger than the file; record it again")
        mapped = self._map_table(dataset, dtype) if nbytes > _MAPPED_TABLE_BYTES else None
        table = read_table(dataset, dtype) if mapped is None else mapped
        if self._digest(bytes_of(table), None).hex() != self._digests[name]:
            raise DumpDamaged(f"{self.path}: the table `{name}` was changed after it was written; record it again")
        return table

    def _map_table(self, dataset: Any, dtype: np.dtype[Any]) -> Array | None:
        start = dataset.get_offset()  # None where it lies in chunks
        if start is not None and len(dataset.shape) == 1:
            with suppress(OSError):  # no room for one more mapping: read it as any other
                return self._handles.map(self.path).view(start, dataset.shape[0] * dtype.itemsize).view(dtype)
        return None

    @cached_property
    def keys(self) -> list[str]:
        """The text forms of the keys. Raises DumpDamaged."""
        with self._translating:
            return decode_keys(self._keys)

    @cached_property
    def _rows(self) -> memoryview:
        return fit_index(self.index)

    def record(self, row: int) -> TensorRecord:
        """The record of one index row. Raises DumpDamaged."""
        with self._translating:
            record = read_record(self._rows, row, self.keys[row], self.texts)
        return record if self._digests_compare else replace(record, digest=b"")

    @cached_property
    def info(self) -> RunInfo:
        """The run's information as it was when the file was finished. Raises DumpDamaged."""
        with self._translating:
            return decode_info(self._info.tobytes().decode("ascii"))

    @property
    def call_steps(self) -> Array:
        """The steps of its calls, int64[n]."""
        return np.asarray(self._calls["step"])

    def calls(self) -> list[Call]:
        """All calls in it, in the order they were put. Raises DumpDamaged."""
        with self._translating:
            return read_calls(self._calls, self.texts)

    def points(self) -> list[Point]:
        """All points in it, in the order they were put. Raises DumpDamaged."""
        with self._translating:
            return read_points(self._series, self.texts)

    def payload(self, row: int, record: TensorRecord | None = None) -> Array | None:
        """The raw words of one row in their logical shape, hash verified; None where no payload is stored.

        ``record``: the row's, where the caller has built it already. Raises DumpDamaged.
        """
        record = record or self.record(row)
        if not self._flags[row] & layout.HAS_PAYLOAD:
            referred = self._read_reference(row, record)
            return None if referred is None else referred.copy()
        start, stored = int(self._offsets[row]), int(self._stored[row])
        with self._translating:
            words = _unpack(self._read_bytes(record, start, stored), record, int(self._expanded[row]))
        self._verify(row, words)
        return words

    def map_payload(self, row: int, record: TensorRecord | None = None) -> Array | None:
        """The same without a copy, read-only; None where no payload is stored, or not in one plain piece.

        The hash is verified when a row is read for the first time. Raises DumpDamaged.
        """
        record = record or self.record(row)
        if not self._flags.item(row) & layout.HAS_PAYLOAD:
            return self._read_reference(row, record)
        try:  # what _Translation does, without the cost of a context
            words = self._map_words(row, record)
        except DumpError:
            raise
        except BROKEN as error:
            raise self._translating.describe(error) from error
        # One tensor may be larger than memory: what was hashed is let go of and read again by whoever wants it.
        if words is not None and row not in self._verified:
            self._verify(row, words, release_pages if self._stored.item(row) > RESIDENT_BYTES // 2 else None)
        return words

    def _map_words(self, row: int, record: TensorRecord) -> Array | None:
        stored, expanded = self._stored.item(row), self._expanded.item(row)
        where = self._extents(record).locate(self._offsets.item(row), stored)
        if where is None:
            return None
        try:
            file = self._handles.map(self.path)
            if not expanded:
                return file.show(where, stored, _find_word(record.dtype), record.shape)
            data = file.view(where, stored)
        except OSError:  # a file system without mmap, or no room for one more mapping
            return None
        return _unpack(data, record, expanded, copy=False)

    def _read_reference(self, row: int, record: TensorRecord) -> Array | None:
        words = read_reference(record, self.path)
        if words is not None and row not in self._verified:
            verify_reference(record, self.path, words)
            self._verified.add(row)
        return words

    def _verify(self, row: int, words: Array, release: Release | None = None) -> None:
        if row in self._verified:
            return
        if self._digest(words, release) != self.index["digest"][row].tobytes():
            raise DumpDamaged(f"{self.path}: the payload of {self.keys[row]} does not fit its hash; record it again")
        self._verified.add(row)

    def _read_bytes(self, record: TensorRecord, start: int, stored: int) -> Array:
        if stored > self._size and not self._compressed:
            raise DumpDamaged(f"{self.path}: the payload of {record.key} is larger than the file; record it again")
        where = self._extents(record).locate(start, stored)
        if where is not None:
            return self._handles.map(self.path).read(where, stored)
        with self._reading() as file:
            return read_filtered(file[self._blob_name(record)], start, stored)

    def _blob_name(self, record: TensorRecord) -> str:
        return layout.name_blob(dtype_of(record.dtype).itemsize) if self._compressed else "blob"

    @cached_property
    def _compressed(self) -> bool:
        with self._reading() as file:
            return "blob" not in file

    def _extents(self, record: TensorRecord) -> Extents:
        name = self._blob_name(record)
        if name not in self._blobs:
            with self._reading() as file:
                self._blobs[name] = Extents(file[name])
        return self._blobs[name]

    def sketch(self, row: int) -> Array | None:
        """The stored sketch of one row in float64, or None. Raises DumpDamaged."""
        return self._read_sketch(row) if self._flags[row] & layout.HAS_SKETCH and self._sketches_compare else None

    def sample(self, row: int) -> Array | None:
        """The stored sample of one row (see :mod:`~precision_align.numerics.sampling`), or None. Raises DumpDamaged."""
        return self._read_sketch(row) if self._flags[row] & layout.HAS_SAMPLE else None

    def _read_sketch(self, row: int) -> Array:
        place = self.index[row]
        if self._sketches is None:
            with self._reading() as file:
                self._sketches = self._read_table(file, "sketches")
        start = int(place["sketch_offset"])
        return self._sketches[start : start + int(place["sketch_length"])].copy()


@cache
def _find_word(dtype: str) -> np.dtype[Any]:
    return np.dtype(dtype_of(dtype).word)


def _unpack(data: Array, record: TensorRecord, expanded: int, *, copy: bool = True) -> Array:
    words = data.view(_find_word(record.dtype))
    if not expanded:
        return words.reshape(record.shape)
    grid = [1 if expanded >> axis & 1 else size for axis, size in enumerate(record.shape)]
    whole = np.broadcast_to(words.reshape(grid), record.shape)
    return np.ascontiguousarray(whole) if copy else whole
