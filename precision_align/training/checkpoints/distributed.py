"""Checkpoints of torch.distributed.checkpoint: a pickled index, and chunks of tensors in torch files.

The index is read by an unpickler that builds stand-ins for the classes of torch's metadata and refuses all other names.
Each chunk is a small torch file of its own inside a large one; it is copied to a temporary file when it is read.
"""

from __future__ import annotations

import pickle
import tempfile
from collections import OrderedDict
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from precision_align.core.dtypes import Array
from precision_align.core.errors import DumpDamaged
from precision_align.storage.foreign.items import Tensor, Unreadable, require_known
from precision_align.storage.foreign.pickles import list_pickle, load_checked

METADATA = ".metadata"
_METADATA_CLASSES = (
    "Metadata",
    "TensorStorageMetadata",
    "TensorProperties",
    "ChunkStorageMetadata",
    "BytesStorageMetadata",
    "MetadataIndex",
    "StorageMeta",
    "_StorageInfo",
    "_MEM_FORMAT_ENCODING",
)
_MODULES = ("torch.distributed.checkpoint.metadata", "torch.distributed.checkpoint.filesystem")
_REFUSED = (pickle.UnpicklingError, EOFError, AttributeError, IndexError, KeyError, TypeError, ValueError)
_COPIED = 1 << 24  # bytes copied at a time
_PATHS = ("PosixPath", "WindowsPath", "PurePosixPath", "PureWindowsPath")


class _Stand:
    """Stands for any class of the metadata: its fields by name, or its state as it was pickled."""

    state: Any = {}  # noqa: RUF012, of an object without fields, which is pickled without a state

    def __init__(self, *values: Any) -> None:
        self.state: Any = values

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "state":
            raise AttributeError(name)
        return self.state.get(name)  # a field that kept its default may be left out

    def __hash__(self) -> int:
        return id(self)


class _Name(str):
    """A dtype or layout, by its name."""


def _take_member(owner: Any, name: str) -> _Name:
    """In place of ``getattr``: the name alone, whatever it is asked of; nothing is looked up."""
    return _Name(name)


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if module in _MODULES and name in _METADATA_CLASSES:
            return _Stand
        if (module, name) == ("torch", "Size") or (module.startswith("pathlib") and name in _PATHS):
            return tuple if name == "Size" else _Stand
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        if (module, name) == ("torch.serialization", "_get_layout"):
            return _Name
        if (module, name) == ("builtins", "getattr"):  # how Python up to 3.11.3 writes the member of an Enum
            return _take_member
        if module == "torch" and name.replace("_", "").isalnum() and name.islower():
            return _Name(name)
        raise pickle.UnpicklingError(f"it names {module}.{name}, which is no part of torch's metadata")


def list_distributed(folder: Path) -> Mapping[str, Callable[[], Tensor]]:
    """The tensors of a distributed checkpoint by name. Raises DumpDamaged."""
    try:
        metadata = load_checked(_Reader, (folder / METADATA).read_bytes())
        described = metadata.state_dict_metadata
        places: dict[str, list[tuple[tuple[int, ...], Any]]] = {}
        for index, info in metadata.storage_data.items():
            places.setdefault(index.fqn, []).append((tuple(index.offset or ()), info))
        tensors = {
            str(name): partial(
                _assemble, folder, str(name), tuple(entry.size), _read_dtype(entry), places.get(name, [])
            )
            for name, entry in described.items()
            if isinstance(entry.state, Mapping) and "size" in entry.state
        }
    except (OSError, RecursionError, MemoryError, OverflowError, *_REFUSED) as error:
        raise DumpDamaged(f"{folder / METADATA} is no readable index of a distributed checkpoint: {error}") from error
    return tensors


def _read_dtype(entry: Any) -> str:
    state = entry.properties.state
    return str(state["dtype"] if isinstance(state, Mapping) else state[0])


def _assemble(
    folder: Path, name: str, shape: tuple[int, ...], dtype: str, chunks: list[tuple[tuple[int, ...], Any]]
) -> Tensor:
    """All chunks in their places. Raises Unreadable where one is missing or they do not cover the tensor."""
    row = require_known(dtype)
    loaded = [(offset, _load_chunk(folder, info)) for offset, info in chunks]
    if len(loaded) == 1 and loaded[0][1].words.shape == shape:
        return loaded[0][1]
    whole: Array = np.zeros(shape, dtype=np.dtype(row.word))
    covered = 0
    for offset, chunk in loaded:
        place = tuple(slice(start, start + size) for start, size in zip(offset, chunk.words.shape))
        if whole[place].shape != chunk.words.shape:
            raise Unreadable(f"{name}: a chunk at {offset} of shape {chunk.words.shape} lies outside {shape}")
        whole[place] = chunk.words
        covered += chunk.words.size
    if covered != whole.size:
        raise Unreadable(f"{name}: its chunks hold {covered} of {whole.size} values")
    return Tensor(whole, row.name)


def _load_chunk(folder: Path, info: Any) -> Tensor:
    path = folder / str(info.relative_path)
    try:
        with path.open("rb") as file, tempfile.NamedTemporaryFile(suffix=".pt") as copy:
            file.seek(int(info.offset))
            left = int(info.length)
            while left > 0 and (data := file.read(min(left, _COPIED))):
                copy.write(data)
                left -= len(data)
            if left > 0:
                raise Unreadable(f"{path.name}: it is cut off {left} bytes before the end of a chunk; copy it again")
            copy.flush()
            found = list_pickle(Path(copy.name))
            if list(found) != [""]:
                raise Unreadable(f"{path.name}: the chunk at byte {info.offset} is no lone tensor")
            return found[""]()  # mapped: its pages outlive the file's name
    except OSError as error:
        raise Unreadable(f"{path.name}: {error.strerror or error}") from error
    except DumpDamaged as error:
        raise Unreadable(f"{path.name}: the chunk at byte {info.offset} is damaged: {error.args[0]}") from error
    except (TypeError, ValueError, OverflowError) as error:
        raise Unreadable(f"{METADATA} says no place for a chunk of {path.name}: {error}") from error
