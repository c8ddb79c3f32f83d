"""Payloads as plain files for other tools: named HDF5 datasets, one .npy or .pt a tensor, or one safetensors file."""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from precision_align.core.dtypes import Array, dtype_of
from precision_align.core.errors import Unavailable, UsageError
from precision_align.core.records import TensorRecord
from precision_align.core.terms import Tier
from precision_align.storage.base import Dump
from precision_align.storage.foreign.arrays import SAFETENSORS
from precision_align.storage.hashing import digest_bytes
from precision_align.storage.patience import PatientFile

FORMATS = ("hdf5", "npy", "safetensors", "pt")
# HDF5 keeps link names up to 64 KiB; far shorter ones are already unreadable in any viewer.
_MAX_NAME = 1000
_MAX_SCOPE = 80


def export(dump: Dump, folder: str | os.PathLike[str], format: str = "hdf5") -> Path:  # noqa: A002
    """Write every stored payload of a dump into a new or empty folder; the file to look at first is returned.

    "hdf5": ``tensors.h5`` with a dataset a tensor, named by its key with "|" for "/", its dtype as an attribute.
    "npy": numbered files and ``index.json`` that names them. In both, bfloat16, float8 and complex32 are unsigned
    words, with a note that says so. "safetensors": ``tensors.safetensors`` with each key as the name; types that the
    format lacks are raw bytes, told in its metadata. "pt": as "npy", with torch's own types; needs torch. Raises
    UsageError, Unavailable.
    """
    if format not in FORMATS:
        raise UsageError(f"unknown export format {format!r}: choose one of {', '.join(FORMATS)}")
    place = Path(folder)
    if place.exists() and (not place.is_dir() or any(place.iterdir())):
        raise UsageError(f"{place} is not an empty folder: choose another one for the export")
    writer = {"hdf5": _export_hdf5, "npy": _export_npy, "safetensors": _export_safetensors, "pt": _export_pt}[format]
    place.mkdir(parents=True, exist_ok=True)
    return writer(dump, place)


def _stored(dump: Dump) -> Iterator[tuple[TensorRecord, Array]]:
    for record in dump.records:
        if record.tier is Tier.FULL:
            yield record, dump.payload(record.key)


def describe_words(dtype: str) -> str:
    """A note on dtypes that NumPy does not know, "" for the others."""
    row = dtype_of(dtype)
    if np.dtype(row.word).kind == "u" and row.is_floating:
        return f"raw {row.word[1:]} words of {row.name}: NumPy has no such type"
    return ""


def _export_hdf5(dump: Dump, folder: Path) -> Path:
    path = folder / "tensors.h5"
    with PatientFile(path) as target, h5py.File(target, "w") as file:
        for record, words in _stored(dump):
            dataset = file.create_dataset(name_dataset(record), data=words)
            dataset.attrs["dtype"] = record.dtype
            note = describe_words(record.dtype)
            if note:
                dataset.attrs["note"] = note
            if target.error is not None:
                break
    return path


def name_dataset(record: TensorRecord) -> str:
    """A flat, unique HDF5 name: the key with "|" for "/"; the end of a very long one is replaced by its hash."""
    text = str(record.key).replace("|", "%7C").replace("/", "|")
    data = text.encode("utf-8", "backslashreplace")
    if len(data) <= _MAX_NAME and data.decode("utf-8") == text:
        return text
    return data[:_MAX_NAME].decode("utf-8", "ignore") + "..." + digest_bytes(str(record.key).encode("utf-8", "replace"))


def _export_npy(dump: Dump, folder: Path) -> Path:
    listing: list[dict[str, Any]] = []
    for number, (record, words) in enumerate(_stored(dump)):
        name = f"{number:06d}-{_plain_name(record)}.npy"
        np.save(folder / name, words, allow_pickle=False)
        row = {"file": name, "key": str(record.key), "dtype": record.dtype, "shape": list(record.shape)}
        note = describe_words(record.dtype)
        listing.append({**row, "note": note} if note else row)
    path = folder / "index.json"
    path.write_text(json.dumps(listing, indent=1), "ascii")
    return path


def _export_safetensors(dump: Dump, folder: Path) -> Path:
    """8 bytes of length, a JSON header, then the data; the header needs no payload, so they are read one by one."""
    codes = {name: code for code, name in SAFETENSORS.items()}
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for record in dump.records:
        if record.tier is Tier.FULL:
            code, shape = codes.get(record.dtype), list(record.shape)
            if code is None:
                header["__metadata__"][str(record.key)] = f"raw bytes of {record.dtype}, shape {shape}"
                code, shape = "U8", [record.nbytes]
            places = [offset, offset + record.nbytes]
            header[str(record.key)] = {"dtype": code, "shape": shape, "data_offsets": places}
            offset += record.nbytes
    text = json.dumps(header).encode("ascii")
    text += b" " * (-len(text) % 8)
    path = folder / "tensors.safetensors"
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _, words in _stored(dump):
            file.write(np.ascontiguousarray(words).data.cast("B") if words.size else b"")
    return path


def _export_pt(dump: Dump, folder: Path) -> Path:
    try:
        torch: Any = importlib.import_module("torch")  # by name: this package works without it
    except ImportError as error:
        raise Unavailable("the export format pt needs torch: pip install 'precision-align[torch]'") from error
    listing: list[dict[str, Any]] = []
    for number, (record, words) in enumerate(_stored(dump)):
        name = f"{number:06d}-{_plain_name(record)}.pt"
        torch.save(_to_torch(torch, words, record.dtype), folder / name)
        listing.append({"file": name, "key": str(record.key), "dtype": record.dtype, "shape": list(record.shape)})
    path = folder / "index.json"
    path.write_text(json.dumps(listing, indent=1), "ascii")
    return path


def _to_torch(torch: Any, words: Array, dtype: str) -> Any:
    """The tensor of the same bits; of quantized types the integers behind it."""
    if words.dtype.kind == "u" and words.itemsize > 1:
        words = words.view(f"<i{words.itemsize}")
    tensor = torch.from_numpy(np.ascontiguousarray(words).reshape(words.shape))
    wanted = getattr(torch, dtype)
    return tensor if dtype.startswith(("qint", "quint")) or tensor.dtype == wanted else tensor.view(wanted)


def _plain_name(record: TensorRecord) -> str:
    text = f"{record.key.scope[:_MAX_SCOPE] or 'root'}-{record.key.phase}-{record.key.role}"
    return "".join(letter if letter.isascii() and (letter.isalnum() or letter in "-_.") else "_" for letter in text)
