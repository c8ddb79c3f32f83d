"""One file of a dump while it is written: rows in memory, payloads to disk, tables at the end, then the rename."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Callable

import numpy as np

from precision_align.core.dtypes import Array
from precision_align.core.records import SCHEMA_VERSION, Call, Point
from precision_align.numerics.sketches import SKETCH_KIND
from precision_align.storage import layout
from precision_align.storage.blobs import Blob, require_room
from precision_align.storage.compression import filter_options
from precision_align.storage.drafts import DeferredCall, DeferredDraft
from precision_align.storage.entries import Entry, narrow_words
from precision_align.storage.handles import FILE_MODE, open_hdf5, sync_path
from precision_align.storage.hashing import DIGEST_KIND, bytes_of, digest_words
from precision_align.storage.settings import DEFAULT_SETTINGS, Settings
from precision_align.storage.tables import Placement, Row, build_table, call_row, index_row, read_index, strip_payloads
from precision_align.storage.texts import Encoder, TextWriter, encode_keys

# The lowest format with checksums on all metadata; HDF5 1.10 (h5py 2.9) and later read it.
_LIBVER = ("v110", "v110")
# HDF5 takes its own metadata from blocks of this size. One block holds the index of the blob's chunks (8 bytes each),
# so that nothing comes between two chunks, and a payload that crosses them still lies in one piece.
META_BLOCK = 1 << 16
_SMALL_META_BLOCK = 2048  # HDF5's default: a file whose payloads are no whole chunk need not grow by 64 KiB
# Beyond this many rows a part closes, whatever its bytes: rows wait in memory, about 1.5 KB each.
MAX_ROWS = 200_000


class Part:
    """Collects what belongs into one file of ``folder``; ``note`` is told of rows that no table can hold.

    ``settings``: how it is written; ``encoder``: of texts, shared between files. Raises OSError where the disk is full.
    """

    def __init__(
        self,
        folder: Path,
        sequence: int,
        note: Callable[[str], None],
        settings: Settings = DEFAULT_SETTINGS,
        encoder: Encoder | None = None,
    ) -> None:
        self._folder = folder
        self._sequence = sequence
        self._note = note
        self._settings = settings
        self._file: Any = None
        self._temporary: Path | None = None
        self._blobs: dict[str, Blob] = {}
        self._texts = TextWriter(encoder)
        self._keys: list[str] = []
        self._index = bytearray()
        self._calls: list[Row] = []
        self._points: list[Row] = []
        self._sketches: list[Array] = []
        self._sketch_places: dict[int, int] = {}
        self._sketch_size = 0
        self._first: int | None = None
        self._last = 0
        self.nbytes = 0  # of payload

    @property
    def num_rows(self) -> int:
        """Rows of all tables so far."""
        return len(self._keys) + len(self._calls) + len(self._points)

    @property
    def is_full(self) -> bool:
        """Whether nothing more should be added."""
        return self.nbytes >= self._settings.part_bytes or self.num_rows >= MAX_ROWS

    @property
    def steps(self) -> tuple[int, int]:
        """The first and the last step in it."""
        return self._first or 0, self._last

    def add(self, entry: Entry) -> None:
        """Append a record with its payload and sketch."""
        source = entry.source
        key = source.key_text if isinstance(source, DeferredDraft) else str(source.key)
        try:
            row = index_row(entry, self._place(entry), self._texts)
        except struct.error:
            self._note(f"a number in the record {key} does not fit into 64 bits: it was left out")
            return
        self._index += row
        self._keys.append(key)
        step = source.step if isinstance(source, DeferredDraft) else source.key.step
        if step != self._last or self._first is None:
            self._cover(step)

    def _place(self, entry: Entry) -> Placement:
        if entry.sketch is not None:
            return Placement(sketch_offset=self._place_sketch(entry.sketch), sketch_length=entry.sketch.size)
        if entry.words is None:
            return Placement()
        source, words, mask = entry.source, entry.words, 0
        stride = source.copy.form.stride if isinstance(source, DeferredDraft) else source.stride
        if 0 in stride:
            words, mask = narrow_words(words, stride, entry.digest)
        if not words.flags.c_contiguous:
            words = np.ascontiguousarray(words)
        data, blob = bytes_of(words), self._blob(words.itemsize)
        before = blob.size
        start = blob.append(data, entry.digest)
        self.nbytes += blob.size - before
        return Placement(start, data.size, mask)

    def _blob(self, itemsize: int) -> Blob:
        codec = self._settings.compress
        name = layout.name_blob(itemsize) if codec else "blob"
        found = self._blobs.get(name)
        if found is None:
            found = self._blobs[name] = self._make_blob(name, itemsize, codec)
        return found

    def _make_blob(self, name: str, itemsize: int, codec: str | None) -> Blob:
        reserve = self._settings.reserve_free
        if not codec:
            return Blob(self._folder, self._open, reserve=reserve)
        return Blob(
            self._folder,
            self._open,
            name=name,
            itemsize=min(itemsize, 8),
            filters=filter_options(codec),
            reserve=reserve,
        )

    def _place_sketch(self, sketch: Array) -> int:
        # Equal tensors share one sketch object (see Finisher), which this file keeps alive: its id stays unique.
        if id(sketch) not in self._sketch_places:
            self._sketch_places[id(sketch)] = self._sketch_size
            self._sketches.append(sketch)
            self._sketch_size += sketch.size
        return self._sketch_places[id(sketch)]

    def add_call(self, call: Call | DeferredCall) -> None:
        """Append a call."""
        row = call_row(call, self._texts)
        self._calls.append(row)
        self._cover(row[0])

    def add_point(self, point: Point) -> None:
        """Append a point of a series."""
        self._points.append((point.step, point.micro, self._texts.intern(point.name), point.value))
        self._cover(point.step)

    def _cover(self, step: int) -> None:
        self._last = step if self._first is None else max(self._last, step)
        self._first = step if self._first is None else min(self._first, step)

    def _open(self, meta_block: int = META_BLOCK) -> Any:
        if self._file is None:
            self._temporary = self._free_path(layout.UNFINISHED)
            # "x", not "w" on a file of our own: ext4 writes a file that was truncated out at once when it is closed.
            self._file = open_hdf5(self._temporary, "x", libver=_LIBVER, meta_block_size=meta_block)
            with suppress(OSError):  # some network file systems have no modes
                self._temporary.chmod(FILE_MODE)
        return self._file

    def _free_path(self, suffix: str) -> Path:
        number = 0
        while True:
            path = self._folder / layout.name_part(*self.steps, number)
            if not path.exists() and not path.with_name(path.name + layout.UNFINISHED).exists():
                return path.with_name(path.name + suffix)
            number += 1

    def finish(self, info: str) -> Path:
        """Write the tables, close, and make the file visible under its final name. Raises OSError, RuntimeError."""
        tables = self._build_tables(info)
        room = sum(table.nbytes for table in tables.values()) + 2 * META_BLOCK
        require_room(self._folder, room, self._settings.reserve_free)
        file = self._open(_SMALL_META_BLOCK)
        if not self._settings.compress:
            self._blob(1)  # a file without payloads has an empty one
        for blob in self._blobs.values():
            blob.finish()
        for name, table in tables.items():
            file.create_dataset(name, data=table)
        digests = {name: digest_words(table.view(np.uint8)).hex() for name, table in tables.items()}
        file.attrs["digests"] = json.dumps(digests)
        file.attrs["digest_kind"] = DIGEST_KIND
        file.attrs["sketch_kind"] = SKETCH_KIND
        file.attrs["distinct"] = len(set(self._keys)) == len(self._keys)
        file.attrs["sequence"] = self._sequence
        file.attrs["format"] = layout.FORMAT
        file.attrs["schema_version"] = SCHEMA_VERSION
        file.attrs["complete"] = True
        file.close()
        self._file = None
        if self._settings.fsync != "never" and self._temporary is not None:
            sync_path(self._temporary)
        path = self._publish()
        if self._settings.fsync != "never":
            sync_path(self._folder)
        return path

    def _build_tables(self, info: str) -> dict[str, Array]:
        return {
            "info": _bytes_table(info.encode("ascii")),
            "strings": _bytes_table(self._texts.to_bytes()),
            "keys": _bytes_table(encode_keys(self._keys)),
            "index": read_index(self._index),
            "calls": self._build_plain(self._calls, layout.CALLS, "calls"),
            "series": self._build_plain(self._points, layout.SERIES, "points"),
            "sketches": _join(self._sketches),
        }

    def _build_plain(self, rows: Sequence[Row], dtype: np.dtype[Any], what: str) -> Array:
        table, rejected = build_table(rows, dtype)
        if rejected:
            self._note(f"{len(rejected)} {what} of steps {self.steps} have numbers beyond 64 bits: they were left out")
        return table

    def _publish(self) -> Path:
        if self._temporary is None:
            raise RuntimeError("a part was finished twice")
        number = 0
        while (final := self._folder / layout.name_part(*self.steps, number)).exists():
            number += 1
        self._temporary.replace(final)
        self._temporary = None
        return final

    def drop_payloads(self, reason: str) -> None:
        """Go on without the payloads collected so far: their records keep hash and statistics, and get ``reason``."""
        self.abandon()
        self._blobs.clear()
        self.nbytes = 0
        index = read_index(self._index)
        strip_payloads(index, self._texts.intern(reason))
        self._index = bytearray(index.tobytes())

    def abandon(self) -> None:
        """Remove what is on disk of it; raises nothing.

        The file is emptied before it is unlinked: HDF5 may keep it open when its own close fails on a full disk, and
        an open file would go on holding the space.
        """
        if self._temporary is not None:
            with suppress(OSError):
                os.truncate(self._temporary, 0)
            with suppress(OSError):
                self._temporary.unlink()
        file, self._file, self._temporary = self._file, None, None
        if file is not None:
            with suppress(OSError, RuntimeError, ValueError):
                file.close()


def _bytes_table(data: bytes) -> Array:
    return np.frombuffer(data, dtype=np.uint8)


def _join(sketches: Sequence[Array]) -> Array:
    return np.concatenate(sketches) if sketches else np.zeros(0, dtype=np.float64)
