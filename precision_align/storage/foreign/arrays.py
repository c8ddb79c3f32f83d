"""Tensors of .npy, .npz and .safetensors files, read by name."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Callable

import numpy as np

from precision_align.core.dtypes import Array
from precision_align.core.errors import DumpDamaged
from precision_align.storage.foreign.items import Tensor, Unreadable, name_numpy, native_words, require_known
from precision_align.storage.mapping import MappedFile

Loader = Callable[[], Tensor]

# The format's own limit of its header.
_MAX_HEADER = 100_000_000
SAFETENSORS = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "F8_E8M0": "float8_e8m0fnu",
    "C64": "complex64",
    "BOOL": "bool",
    "U8": "uint8",
    "I8": "int8",
    "I16": "int16",
    "I32": "int32",
    "I64": "int64",
    "U16": "uint16",
    "U32": "uint32",
    "U64": "uint64",
}


def list_npy(path: Path) -> Mapping[str, Loader]:
    """The one array of a .npy file, under the name ""."""
    return {"": partial(_load_npy, path)}


def _load_npy(path: Path) -> Tensor:
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError, SyntaxError) as error:
        raise Unreadable(f"{path.name}: {error}") from error
    return _from_numpy(array)


def list_npz(path: Path) -> Mapping[str, Loader]:
    """The arrays of a .npz file by their names. Raises DumpDamaged."""
    import zipfile  # which takes longer to import than many a file to read

    try:
        with zipfile.ZipFile(path) as archive:
            names = [name for name in archive.namelist() if name.endswith(".npy")]
    except (OSError, zipfile.BadZipFile) as error:
        raise DumpDamaged(f"{path} is no readable .npz file: {error}") from error
    return {name[: -len(".npy")]: partial(_load_npz, path, name) for name in names}


def _load_npz(path: Path, name: str) -> Tensor:
    import zipfile

    try:
        with zipfile.ZipFile(path) as archive, archive.open(name) as file:
            return _from_numpy(np.lib.format.read_array(file, allow_pickle=False))
    except (OSError, ValueError, EOFError, KeyError, SyntaxError, MemoryError, zipfile.BadZipFile) as error:
        raise Unreadable(f"{path.name}, {name}: {error}") from error


def _from_numpy(array: Any) -> Tensor:
    return Tensor(native_words(np.asarray(array)), name_numpy(array.dtype))


def list_safetensors(path: Path) -> Mapping[str, Loader]:
    """The tensors of a .safetensors file (8 bytes of length, a JSON header, raw data) by name. Raises DumpDamaged."""
    try:
        file = MappedFile(path)
        try:
            length = int(file.read(0, 8).view("<u8")[0])
            if length > _MAX_HEADER:
                raise ValueError(f"a header of {length} bytes")
            header = json.loads(file.read(8, length).tobytes())
        finally:
            file.close()
        if not isinstance(header, dict):
            raise ValueError("the header is no JSON object")
    except (OSError, ValueError, RecursionError) as error:
        raise DumpDamaged(f"{path} is no readable safetensors file: {error}") from error
    entries = {str(name): entry for name, entry in header.items() if name != "__metadata__"}
    return {name: partial(_load_safetensor, path, entry, 8 + length) for name, entry in entries.items()}


def _load_safetensor(path: Path, entry: Any, start: int) -> Tensor:
    try:
        name = SAFETENSORS.get(entry["dtype"], str(entry["dtype"]))
        shape = tuple(int(size) for size in entry["shape"])
        first, last = (int(offset) for offset in entry["data_offsets"])
        row = require_known(name)
        return Tensor(map_words(path, start + first, last - first, row.word, shape), name)
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise Unreadable(f"{path.name}: {error}") from error


def map_words(path: Path, offset: int, nbytes: int, word: str, shape: tuple[int, ...]) -> Array:
    """Words of a file without a copy. Raises OSError, ValueError where they do not fit the shape."""
    file = MappedFile(path)
    try:
        return file.view(offset, nbytes).view(np.dtype(word)).reshape(shape)
    finally:
        file.close()
