"""Tensors of .pt and .pth files in torch's zip format, without torch and without running anything that the file says.

The pickle inside is read by an unpickler that knows tensors, parameters, storages, ordered dictionaries and a few plain
types. Objects of a few packages that trainers save beside their tensors become their fields alone; every other name is
refused. The values lie uncompressed in the archive and are mapped, not copied.
"""

from __future__ import annotations

import io
import pickle
import pickletools
import struct
import zlib
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from mmap import mmap
from pathlib import Path
from typing import Any, Callable

import numpy as np

from precision_align.core.dtypes import Array
from precision_align.core.errors import DumpDamaged
from precision_align.storage.foreign.archives import LOCAL_HEADER, Entry, NoArchive, read_archive
from precision_align.storage.foreign.items import Tensor, Unreadable, require_known
from precision_align.storage.mapping import map_file

_STORAGES = {
    "DoubleStorage": "float64",
    "FloatStorage": "float32",
    "HalfStorage": "float16",
    "BFloat16Storage": "bfloat16",
    "LongStorage": "int64",
    "IntStorage": "int32",
    "ShortStorage": "int16",
    "CharStorage": "int8",
    "ByteStorage": "uint8",
    "BoolStorage": "bool",
    "ComplexFloatStorage": "complex64",
    "ComplexDoubleStorage": "complex128",
}
_REFUSED = (pickle.UnpicklingError, EOFError, AttributeError, IndexError, KeyError, TypeError, ValueError)
_BROKEN = (OSError, RuntimeError, MemoryError, OverflowError, zlib.error)  # of damaged archives
_PLACES = ("PUT", "BINPUT", "LONG_BINPUT")
_MAX_DEPTH = 64
# A lone tensor's list has some 200 bytes.
_SMALL = 1024


@dataclass(frozen=True)
class _Storage:
    """Values in the archive; ``dtype``: "" for untyped bytes."""

    key: str
    dtype: str


@dataclass(frozen=True)
class _Tensor:
    storage: _Storage
    dtype: str
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]


@dataclass(frozen=True)
class _Name:
    """A global that only stands for itself: a dtype, a storage class."""

    name: str


def _rebuild_tensor(storage: Any, offset: Any, shape: Any, stride: Any, *_: Any) -> _Tensor:
    if not isinstance(storage, _Storage):
        raise pickle.UnpicklingError("a tensor without a storage")
    return _Tensor(storage, storage.dtype, int(offset), tuple(map(int, shape)), tuple(map(int, stride)))


def _rebuild_tensor_v3(
    storage: Any, offset: Any, shape: Any, stride: Any, grad: Any, hooks: Any, dtype: Any
) -> _Tensor:
    plain = _rebuild_tensor(storage, offset, shape, stride)
    return _Tensor(plain.storage, dtype.name, plain.offset, plain.shape, plain.stride)


def _first(value: Any, *_: Any) -> Any:
    return value


class _Stand(dict):  # type: ignore[type-arg]
    """Stands for an object that trainers save beside the tensors: its fields by name, and nothing of its class.

    Neither its class nor its arguments are used for anything, so a name that a file makes up does no harm.
    """

    def __init__(self, *_: Any) -> None:
        super().__init__()

    def __hash__(self) -> int:  # type: ignore[override]
        return id(self)

    def __setstate__(self, state: Any) -> None:
        if isinstance(state, Mapping):
            self.update(state)


_KNOWN: dict[tuple[str, str], Callable[..., Any]] = {
    ("collections", "OrderedDict"): OrderedDict,
    ("torch._utils", "_rebuild_tensor"): _rebuild_tensor,
    ("torch._utils", "_rebuild_tensor_v2"): _rebuild_tensor,
    ("torch._utils", "_rebuild_tensor_v3"): _rebuild_tensor_v3,
    ("torch._utils", "_rebuild_parameter"): _first,
    ("torch", "Size"): tuple,
    ("torch", "device"): lambda *words: ":".join(map(str, words)),
    ("collections", "defaultdict"): lambda *_: {},
    ("builtins", "list"): list,
    ("builtins", "dict"): dict,
    ("builtins", "set"): set,
    ("argparse", "Namespace"): _Stand,
    ("_codecs", "encode"): _Stand,  # the bytes of NumPy's arrays in old pickles
}
# Settings, enumerations, loss scalers and generators' states, as these packages put them into their checkpoints.
_STANDS = ("numpy", "megatron", "mindspeed", "deepspeed", "transformers", "accelerate", "omegaconf")


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _KNOWN:
            return _KNOWN[module, name]
        if module in ("torch", "torch.storage") and (name in _STORAGES or name == "UntypedStorage"):
            return _Name(_STORAGES.get(name, ""))
        if module == "torch" and name.replace("_", "").isalnum() and name.islower():
            return _Name(name)  # a dtype, a layout
        if module.partition(".")[0] in _STANDS:
            return _Stand
        raise pickle.UnpicklingError(
            f"it names {module}.{name}, which is no tensor or plain container and is not loaded"
        )

    def persistent_load(self, pid: Any) -> _Storage:
        kind, described, key = pid[0], pid[1], pid[2]
        if kind != "storage" or not isinstance(described, _Name):
            raise pickle.UnpicklingError("it refers to something other than a storage")
        return _Storage(str(key), described.name)


def load_checked(reader: type[pickle.Unpickler], data: bytes) -> Any:
    """What ``reader`` makes of a pickle whose opcodes ask for no more memory than it has bytes.

    The unpickler in C sizes its memo by the largest place that an opcode names, before anything is put there: one
    flipped bit costs 64 GB. Raises UnpicklingError, ValueError, and what unpickling raises.
    """
    for opcode, argument, _ in pickletools.genops(data):  # itself refuses lengths that lead behind the end
        if opcode.name in _PLACES and int(argument or 0) > len(data):
            raise pickle.UnpicklingError(f"it numbers an object {argument}, and has no more than {len(data)} bytes")
    return reader(io.BytesIO(data)).load()


def list_pickle(path: Path) -> Mapping[str, Callable[[], Tensor]]:
    """The tensors of a .pt file by their dotted place in its dictionaries and lists ("" for a lone tensor).

    Raises DumpDamaged for another format, and for a file that names anything but tensors and plain containers.
    """
    try:
        folder, data, entries = read_archive(path)
        content = _read_small(data) if len(data) <= _SMALL else load_checked(_Reader, data)
    except NoArchive as error:
        raise DumpDamaged(f"{path} {_explain_no_archive(path)}") from error
    except (*_BROKEN, *_REFUSED) as error:
        raise DumpDamaged(f"{path} is not read: {error}; save a tensor or a dictionary of tensors instead") from error
    return {
        place: partial(_load, path, entries.get(f"{folder}data/{found.storage.key}"), found)
        for place, found in _walk(content, "", 0)
    }


@lru_cache(maxsize=256)
def _read_small(data: bytes) -> Any:
    """The tensors of one shape, saved each by itself, have equal lists. What is returned is not to be changed."""
    return load_checked(_Reader, data)


def _explain_no_archive(path: Path) -> str:
    with path.open("rb") as file:
        start = file.read(2)
    if not start:
        return "is empty: save or copy it again"
    if start == b"PK":
        return "is cut off or damaged: it begins as a zip archive and is none; copy it again"
    return (
        "is not in torch's zip format (of torch 1.6 and later): load it with torch.load(..., weights_only=True) and "
        "save it again"
    )


def _walk(value: Any, place: str, depth: int) -> Iterator[tuple[str, _Tensor]]:
    if isinstance(value, _Tensor):
        yield place, value
    elif isinstance(value, (Mapping, list, tuple)) and depth < _MAX_DEPTH:
        pairs = value.items() if isinstance(value, Mapping) else enumerate(value)
        for key, item in pairs:
            yield from _walk(item, f"{place}.{key}" if place else str(key), depth + 1)


def _load(path: Path, entry: Entry | None, tensor: _Tensor) -> Tensor:
    row = require_known(tensor.dtype)
    if entry is None:
        raise Unreadable(f"{path.name} has no values for its tensor")
    try:
        mapping, start = _map_entry(path, entry)
        _require_inside(tensor, entry.nbytes // row.itemsize)
        view: Array = np.ndarray(
            tensor.shape,
            row.word,
            mapping,
            start + tensor.offset * row.itemsize,
            tuple(step * row.itemsize for step in tensor.stride),
        )
    except (OSError, TypeError, ValueError, OverflowError, struct.error) as error:
        raise Unreadable(f"{path.name}: {error}") from error
    return Tensor(view if view.flags.c_contiguous else np.ascontiguousarray(view).reshape(tensor.shape), row.name)


def _require_inside(tensor: _Tensor, size: int) -> None:
    """Raise ValueError where strides lead out of the storage: they would show another tensor's values."""
    if len(tensor.shape) != len(tensor.stride) or min((tensor.offset, *tensor.shape, *tensor.stride)) < 0:
        raise ValueError("a tensor with impossible sizes")
    if 0 in tensor.shape:
        return
    last = tensor.offset + sum((count - 1) * step for count, step in zip(tensor.shape, tensor.stride))
    if last >= size:
        raise ValueError(f"a tensor of shape {tensor.shape} that is larger than its storage of {size} values")


def _map_entry(path: Path, entry: Entry) -> tuple[mmap, int]:
    """The mapped file, and where in it the content of an entry begins."""
    if entry.compressed:
        raise ValueError("its values are compressed, which torch never does")
    mapping = map_file(path)
    _, length, more = LOCAL_HEADER.unpack_from(mapping, entry.header)
    start = entry.header + LOCAL_HEADER.size + length + more
    if start + entry.nbytes > len(mapping):
        raise OSError(f"bytes {start} to {start + entry.nbytes} lie outside the file, which has {len(mapping)}")
    return mapping, start
