"""Certificate files: one beside the step files of a rank, with the float64 golden and the noise of its records.

A file holds one byte blob and one JSON index. A result costs six bytes a value: the golden as the float32 residual
against the recorded value, the condition scale as the upper half of a float32.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

import numpy as np

from precision_align.core.dtypes import Array
from precision_align.core.errors import DumpDamaged, SchemaTooNew
from precision_align.storage.handles import open_hdf5
from precision_align.storage.layout import UNFINISHED
from precision_align.storage.remote import find_file

FORMAT = "precision-align certificate"
SCHEMA_VERSION = 1
SUFFIX = ".certificate"


@dataclass(frozen=True)
class Entry:
    """One certified record. ``fingerprint``: of everything it was computed from; ``scale``: the fields of a Scale but
    its values; ``floors``: variant -> relative RMS error; ``noise``: see ``replay.certifying``.
    """

    key: str
    fingerprint: str
    shape: tuple[int, ...]
    scale: Mapping[str, Any]
    floors: Mapping[str, float]
    noise: float
    wide: bool = False
    offset: int = 0


class CertificateWriter:
    """Writes one file; the values go to disk record by record. Use as a context manager."""

    def __init__(self, path: Path, information: Mapping[str, Any]) -> None:
        self._path = path
        self._draft = path.with_name(path.name + UNFINISHED)
        self._information = dict(information)
        self._entries: list[dict[str, Any]] = []

    def __enter__(self) -> CertificateWriter:
        self._file = open_hdf5(self._draft, "w")
        self._blob = self._file.create_dataset("blob", (0,), "u1", maxshape=(None,), chunks=(1 << 16,))
        return self

    def __exit__(self, kind: Optional[type[BaseException]], *error: object) -> None:
        if kind is None:
            text = json.dumps(self._entries).encode()
            self._file.create_dataset("index", data=np.frombuffer(text, dtype=np.uint8))
            self._file.attrs.update(
                format=FORMAT, schema_version=SCHEMA_VERSION, information=json.dumps(self._information)
            )
        self._file.close()
        if kind is None:
            self._draft.replace(self._path)
        else:
            self._draft.unlink()

    def add(self, entry: Entry, golden: Array, recorded: Array, size: Array) -> None:
        """``golden``, ``recorded``: float64 (or complex128) of the entry's shape; ``size``: the scale's values."""
        with np.errstate(all="ignore"):
            residual = golden - recorded
        wide = bool(golden.dtype.kind == "c" or not np.isfinite(residual).all())
        first = np.ascontiguousarray(golden if wide else residual.astype(np.float32))
        upper = (np.abs(size).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
        words = np.concatenate(
            [first.reshape(-1).view(np.uint8), np.ascontiguousarray(upper).reshape(-1).view(np.uint8)]
        )
        offset = int(self._blob.shape[0])
        self._blob.resize((offset + words.size,))
        self._blob[offset:] = words
        self._entries.append(
            {
                "key": entry.key,
                "fingerprint": entry.fingerprint,
                "shape": list(entry.shape),
                "scale": dict(entry.scale),
                "floors": dict(entry.floors),
                "noise": entry.noise,
                "wide": wide,
                "offset": offset,
                "complex": golden.dtype.kind == "c",
            }
        )


class Certificates:
    """The certificates of a dump by the key of the record they speak of."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._found: dict[str, tuple[Path, dict[str, Any]]] = {}
        for path in paths:
            for entry in _read_index(path):
                self._found[entry["key"]] = path, entry

    def __len__(self) -> int:
        return len(self._found)

    def get(self, key: str) -> Optional[Entry]:
        """What is certified of a record."""
        if key not in self._found:
            return None
        entry = self._found[key][1]
        names = ("key", "fingerprint", "scale", "floors", "noise", "wide", "offset")
        return Entry(shape=tuple(entry["shape"]), **{name: entry[name] for name in names})

    def read(self, key: str, recorded: Array) -> tuple[Array, Array]:
        """(golden, the scale's values) of a record, float64; ``recorded``: its own values. Raises KeyError."""
        path, entry = self._found[key]
        count = int(np.prod(entry["shape"], dtype=np.int64))
        first = np.dtype((np.complex128 if entry["complex"] else np.float64) if entry["wide"] else np.float32)
        start, middle = entry["offset"], entry["offset"] + count * first.itemsize
        with open_hdf5(find_file(path), "r") as file:
            words = file["blob"][start : middle + 2 * count]
        values = words[: middle - start].view(first).reshape(entry["shape"])
        golden = values if entry["wide"] else recorded.astype(np.float64) + values
        upper = words[middle - start :].view(np.uint16).astype(np.uint32) << 16
        return np.asarray(golden), upper.view(np.float32).astype(np.float64).reshape(entry["shape"])


def name_certificate(folder: Path, step: int) -> Path:
    """Where the certificate of a step lies in a rank's folder."""
    return folder / f"step{step:08d}{SUFFIX}"


def find_certificates(folders: Iterable[Path]) -> list[Path]:
    """All certificate files beside the step files of a dump."""
    return [path for folder in folders for path in sorted(folder.glob(f"*{SUFFIX}"))]


def _read_index(path: Path) -> Iterator[dict[str, Any]]:
    try:
        with open_hdf5(find_file(path), "r") as file:
            if file.attrs.get("format") != FORMAT:
                raise DumpDamaged(f"{path} is no certificate: remove it, or certify again")
            if int(file.attrs["schema_version"]) > SCHEMA_VERSION:
                raise SchemaTooNew(f"{path} was written by a newer precision-align: upgrade")
            text = file["index"][()].tobytes()
    except (OSError, KeyError) as error:
        raise DumpDamaged(f"{path} is damaged ({error}): certify again") from error
    yield from json.loads(text)
