"""One finished file of a dump, read: its tables at once and verified, payloads and sketches when asked for."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from precision_align.core.dtypes import Array, dtype_of
from precision_align.core.errors import DumpDamaged, DumpError, DumpForeign
from precision_align.core.records import Call, Point, RunInfo, TensorRecord
from precision_align.storage import layout
from precision_align.storage.handles import BROKEN, Handles, first_line
from precision_align.storage.hashing import digest_bytes, digest_words
from precision_align.storage.runs import require_known_schema
from precision_align.storage.tables import decode_info, read_calls, read_points, read_record
from precision_align.storage.texts import TextReader, decode_keys


class PartFile:
    """A finished file. ``sequence`` counts the files of one rank from 0; ``keys`` are in the order of ``index``.

    Raises DumpForeign where it was not written by this package, SchemaTooNew, and DumpDamaged where a table does not
    fit its hash or the file is not complete.
    """

    def __init__(self, path: Path, handles: Handles | None = None) -> None:
        self.path = path
        self._handles = handles or Handles(1)
        self._sketches: Array | None = None
        try:
            with self._reading() as file:
                self._size = path.stat().st_size
                self._read(file)
        finally:
            if handles is None:
                self._handles.close()

    @contextmanager
    def _reading(self) -> Iterator[Any]:
        with self._handles.open(self.path) as file, self._translating():
            yield file

    @contextmanager
    def _translating(self) -> Iterator[None]:
        try:
            yield
        except DumpError:
            raise
        except BROKEN as error:
            raise DumpDamaged(f"{self.path} is damaged: {first_line(error)}; record it again") from error

    def _read(self, file: Any) -> None:
        if str(file.attrs.get("format", "")) != layout.FORMAT:
            raise DumpForeign(f"{self.path} is an HDF5 file, but not a dump of this package")
        require_known_schema(self.path, file.attrs.get("schema_version"))
        if not file.attrs.get("complete", False):
            raise DumpDamaged(f"{self.path} is not complete: its writer was stopped; record it again")
        self._digests = json.loads(file.attrs["digests"])
        self.sequence = int(file.attrs["sequence"])
        self.texts = TextReader(self._read_table(file, "strings").tobytes())
        self._info = self._read_table(file, "info")
        self.keys = decode_keys(self._read_table(file, "keys"))
        self.index = self._read_table(file, "index")
        self._calls = self._read_table(file, "calls")
        self._series = self._read_table(file, "series")
        if len(self.keys) != len(self.index):
            raise DumpDamaged(f"{self.path} has {len(self.keys)} keys for {len(self.index)} tensors; record it again")

    def _read_table(self, file: Any, name: str) -> Array:
        dataset = file[name]
        if dataset.size * dataset.dtype.itemsize > self._size:  # a lie that would only fill the memory
            raise DumpDamaged(f"{self.path}: the table `{name}` is larger than the file; record it again")
        table = np.asarray(dataset[...])
        if digest_bytes(table.tobytes()) != self._digests[name]:
            raise DumpDamaged(f"{self.path}: the table `{name}` was changed after it was written; record it again")
        return table

    def record(self, row: int) -> TensorRecord:
        """The record of one index row. Raises DumpDamaged."""
        with self._translating():
            return read_record(self.index[row], self.keys[row], self.texts)

    @cached_property
    def info(self) -> RunInfo:
        """The run's information as it was when the file was finished. Raises DumpDamaged."""
        with self._translating():
            return decode_info(self._info.tobytes().decode("ascii"))

    @property
    def call_steps(self) -> Array:
        """The steps of its calls, int64[n]."""
        return np.asarray(self._calls["step"])

    def calls(self) -> list[Call]:
        """All calls in it, in the order they were put. Raises DumpDamaged."""
        with self._translating():
            return read_calls(self._calls, self.texts)

    def points(self) -> list[Point]:
        """All points in it, in the order they were put. Raises DumpDamaged."""
        with self._translating():
            return read_points(self._series, self.texts)

    def payload(self, row: int) -> Array | None:
        """The raw words of one row in their logical shape, hash verified; None where no payload is stored.

        Raises DumpDamaged.
        """
        place = self.index[row]
        if not place["flags"] & layout.HAS_PAYLOAD:
            return None
        record = self.record(row)
        start, stored = int(place["offset"]), int(place["stored"])
        if stored > self._size:
            raise DumpDamaged(f"{self.path}: the payload of {record.key} is larger than the file; record it again")
        with self._reading() as file:
            data = np.asarray(file["blob"][start : start + stored])
            words = _unpack(data, record, int(place["expanded"]))
        if digest_words(words) != record.digest:
            raise DumpDamaged(f"{self.path}: the payload of {record.key} does not fit its hash; record it again")
        return words

    def sketch(self, row: int) -> Array | None:
        """The stored sketch of one row in float64, or None. Raises DumpDamaged."""
        place = self.index[row]
        if not place["flags"] & layout.HAS_SKETCH:
            return None
        if self._sketches is None:
            with self._reading() as file:
                self._sketches = self._read_table(file, "sketches")
        start = int(place["sketch_offset"])
        return self._sketches[start : start + int(place["sketch_length"])].copy()


def _unpack(data: Array, record: TensorRecord, expanded: int) -> Array:
    words = data.view(np.dtype(dtype_of(record.dtype).word))
    if not expanded:
        return words.reshape(record.shape)
    grid = [1 if expanded >> axis & 1 else size for axis, size in enumerate(record.shape)]
    return np.ascontiguousarray(np.broadcast_to(words.reshape(grid), record.shape))
