"""One file of a dump while it is written: rows in memory, payloads to disk, tables at the end, then the rename."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from precision_align.core.dtypes import Array
from precision_align.core.records import SCHEMA_VERSION, Call, Point
from precision_align.numerics.sketches import SKETCH_KIND
from precision_align.storage import layout
from precision_align.storage.batches import Batch
from precision_align.storage.blobs import Blob, require_room
from precision_align.storage.compression import filter_options
from precision_align.storage.drafts import DeferredCall
from precision_align.storage.handles import FILE_MODE, open_hdf5, sync_path, write_attributes, write_table
from precision_align.storage.hashing import DIGEST_BYTES, DIGEST_KIND, digest_words
from precision_align.storage.settings import DEFAULT_SETTINGS, Settings
from precision_align.storage.tables import Row, fill_calls, fill_table, strip_payloads
from precision_align.storage.texts import Encoder, TextWriter, encode_keys

# The lowest format with checksums on all metadata; HDF5 1.10 (h5py 2.9) and later read it.
_LIBVER = ("v110", "v110")
# HDF5 takes its own metadata from blocks of this size. One block holds the index of the blob's chunks (8 bytes each),
# so that nothing comes between two chunks, and a payload that crosses them still lies in one piece.
META_BLOCK = 1 << 16
_SMALL_META_BLOCK = 2048  # HDF5's default: a file whose payloads are no whole chunk need not grow by 64 KiB
# Beyond this many rows a part closes, whatever its bytes: rows wait in memory, about 0.5 KB each.
MAX_ROWS = 200_000


class Part:
    """Collects what belongs into one file of ``folder``.

    ``settings``: how it is written; ``encoder``: of texts, shared between files. Raises OSError where the disk is full.
    """

    def __init__(
        self,
        folder: Path,
        sequence: int,
        settings: Settings = DEFAULT_SETTINGS,
        encoder: Encoder | None = None,
    ) -> None:
        self._folder = folder
        self._sequence = sequence
        self._settings = settings
        self._file: Any = None
        self._temporary: Path | None = None
        self._blobs: dict[str, Blob] = {}
        self._texts = TextWriter(encoder)
        self._keys: list[str] = []
        self._index: list[Array] = []
        self._calls: list[Array] = []
        self._points: list[Row] = []
        self._num_calls = 0
        self._sketches: list[Array] = []
        self._sketch_places: dict[tuple[bytes, str, bool], int] = {}
        self._sketch_size = 0
        self._first: int | None = None
        self._last = 0

    @property
    def num_rows(self) -> int:
        """Rows of all tables so far."""
        return len(self._keys) + self._num_calls + len(self._points)

    @property
    def nbytes(self) -> int:
        """Of payload so far."""
        return sum(blob.size for blob in self._blobs.values())

    @property
    def is_full(self) -> bool:
        """Whether nothing more should be added."""
        return self.nbytes >= self._settings.part_bytes or self.num_rows >= MAX_ROWS

    @property
    def steps(self) -> tuple[int, int]:
        """The first and the last step in it."""
        return self._first or 0, self._last

    def add(self, batch: Batch) -> None:
        """Append records with their payloads and sketches: all, or where it raises OSError none."""
        rows = batch.rows
        self._cover(int(rows["step"].min()), int(rows["step"].max()))
        if batch.stored:
            self._store(batch)
        for number, sketch in batch.sketches.items():
            rows["sketch_offset"][number], rows["sketch_length"][number] = (
                self._place_sketch(batch, number),
                sketch.size,
            )
        self._name(batch)
        self._index.append(rows)
        self._keys += batch.keys

    def _store(self, batch: Batch) -> None:
        rows, stored = batch.rows, batch.stored
        digests = rows["digest"][stored].tobytes()
        names = [digests[start : start + DIGEST_BYTES] for start in range(0, len(digests), DIGEST_BYTES)]
        if self._settings.compress:
            blobs = [self._blob(batch.patterns[number].itemsize) for number in stored]
        else:
            blobs = [self._blob(1)] * len(stored)
        rows["offset"][stored] = list(map(Blob.append, blobs, names, batch.addresses, batch.sizes))
        rows["stored"][stored] = batch.sizes
        rows["flags"][stored] |= layout.HAS_PAYLOAD

    def _name(self, batch: Batch) -> None:
        """Fill in the lines of ``strings``."""
        names, wides = zip(*[(pattern.names, id(pattern.wide)) for pattern in batch.patterns])
        extras = [id(extra) if extra else 0 for extra in batch.extras]
        looks: dict[Any, int] = {}
        places = [looks.setdefault(look, len(looks)) for look in zip(names, wides, extras, batch.reasons)]
        firsts = dict(zip(reversed(places), reversed(range(len(places)))))
        # in the order of the records, as if each were alone: a file's bytes depend on nothing else
        table = np.array([self._intern(batch, firsts[place]) for place in range(len(looks))], dtype=np.uint32)
        for column, name in enumerate(("dtype_name", "layout", "device", "reason", "extra", "wide")):
            batch.rows[name] = table[places, column]

    def _intern(self, batch: Batch, number: int) -> tuple[int, ...]:
        pattern, extra, texts = batch.patterns[number], batch.extras[number], self._texts
        names = texts.intern_all((*pattern.names, batch.reasons[number]))
        return (*names, texts.intern(extra) if extra else 0, texts.intern(pattern.wide) if pattern.wide else 0)

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

    def _place_sketch(self, batch: Batch, number: int) -> int:
        """Equal tensors share one sketch."""
        sampled = bool(batch.rows["flags"][number] & layout.HAS_SAMPLE)
        name = batch.digest(number), batch.patterns[number].dtype, sampled
        found = self._sketch_places.get(name)
        if found is None:
            found = self._sketch_places[name] = self._sketch_size
            self._sketches.append(batch.sketches[number])
            self._sketch_size += batch.sketches[number].size
        return found

    def add_calls(self, calls: Sequence[Call | DeferredCall]) -> None:
        """Append calls: all, or where it raises OverflowError none."""
        table = fill_calls(calls, self._texts)
        self._calls.append(table)
        self._num_calls += len(table)
        self._cover(int(table["step"].min()), int(table["step"].max()))

    def add_point(self, point: Point) -> None:
        """Append a point of a series. Raises OverflowError where a number is beyond 64 bits."""
        row = (point.step, point.micro, self._texts.intern(point.name), point.value)
        fill_table([row], layout.SERIES)
        self._points.append(row)
        self._cover(point.step, point.step)

    def _cover(self, first: int, last: int) -> None:
        self._last = last if self._first is None else max(self._last, last)
        self._first = first if self._first is None else min(self._first, first)

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
            write_table(file, name, table)
        digests = {name: digest_words(table.view(np.uint8)).hex() for name, table in tables.items()}
        attributes = {
            "digests": json.dumps(digests),
            "digest_kind": DIGEST_KIND,
            "sketch_kind": SKETCH_KIND,
            "distinct": len(set(self._keys)) == len(self._keys),
            "sequence": self._sequence,
            "format": layout.FORMAT,
            "schema_version": SCHEMA_VERSION,
            "complete": True,
        }
        write_attributes(file, attributes)
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
            "index": _join(self._index, layout.INDEX),
            "calls": _join(self._calls, layout.CALLS),
            "series": fill_table(self._points, layout.SERIES),
            "sketches": _join(self._sketches, np.dtype(np.float64)),
        }

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
        for rows in self._index:
            strip_payloads(rows, self._texts.intern(reason))

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


def _join(pieces: Sequence[Array], dtype: np.dtype[Any]) -> Array:
    return np.concatenate(pieces) if pieces else np.zeros(0, dtype=dtype)
