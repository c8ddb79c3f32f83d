"""Between stored words and torch tensors, and from tensors to float64 arrays."""

from __future__ import annotations

import inspect
from typing import Any, Optional

import numpy as np
import torch

from precision_align.core.dtypes import Array, dtype_of
from precision_align.core.records import TensorRecord
from precision_align.core.trees import class_name
from precision_align.replay.replayability import NotReplayable
from precision_align.storage.base import Dump

# Words that torch.from_numpy of every supported version takes; the bits are reinterpreted afterwards.
_CARRIERS = {"<u2": "<i2", "<u4": "<i4", "<u8": "<i8"}


def load_tensor(dump: Dump, record: TensorRecord) -> torch.Tensor:
    """A recorded tensor on the CPU, in its own dtype and recorded strides. Raises NotReplayable."""
    if record.layout != "strided":
        raise NotReplayable(f"{record.key.path or 'the output'} is {record.layout}, which is not rebuilt")
    if record.reason:
        raise NotReplayable(f"{record.key.role} {record.key.path!r} was not stored: {record.reason}")
    try:
        words = dump.payload(record.key)
        dtype: torch.dtype = getattr(torch, record.dtype)
    except KeyError as error:
        raise NotReplayable(f"{record.key.role} {record.key.path!r} has no payload (tier {record.tier})") from error
    except AttributeError as error:
        raise NotReplayable(f"this torch has no dtype {record.dtype}") from error
    if dtype_of(record.dtype).kind == "quantized":
        raise NotReplayable("quantized tensors are not rebuilt")
    carrier = _CARRIERS.get(np.dtype(words.dtype).str)
    plain = np.array(words, order="C", copy=True)
    tensor = torch.from_numpy(plain.view(carrier) if carrier else plain)
    tensor = tensor if tensor.dtype == dtype else tensor.view(dtype)
    return _restride(tensor.reshape(record.shape), record.stride)


def _restride(tensor: torch.Tensor, stride: tuple[int, ...]) -> torch.Tensor:
    """The same values under other strides, where such a tensor can be allocated."""
    if tuple(tensor.stride()) == stride or tensor.numel() < 2 or len(stride) != tensor.dim():
        return tensor
    if any(step == 0 and size > 1 for step, size in zip(stride, tensor.shape)):
        index = tuple(slice(0, 1) if step == 0 else slice(None) for step in stride)
        inner = tensor[index]
        return inner.expand(tensor.shape)
    extent = 1 + sum((size - 1) * step for size, step in zip(tensor.shape, stride))
    overlapping = extent < tensor.numel() or any(step < 0 for step in stride)
    if overlapping or extent > 8 * tensor.numel():  # a thin slice of something large: not worth its memory
        return tensor
    result = torch.empty_strided(tensor.shape, stride, dtype=tensor.dtype)
    return result.copy_(tensor)


def to_array(tensor: torch.Tensor) -> Array:
    """A tensor's values as float64 (complex128; integers and booleans unchanged), C order."""
    plain = tensor.detach()
    if plain.layout != torch.strided:
        plain = plain.to_dense()
    if plain.is_quantized:
        plain = plain.dequantize()
    plain = plain.resolve_conj().resolve_neg()
    if plain.dtype.is_complex:
        plain = plain.to(torch.complex128)
    elif plain.dtype.is_floating_point:
        plain = plain.to(torch.float64)
    return np.ascontiguousarray(plain.cpu().numpy())


def is_finite(dump: Dump, record: TensorRecord) -> bool:
    """Whether a recorded tensor holds neither NaN nor Inf, by its statistics or else its values."""
    if not dtype_of(record.dtype).is_floating or record.reason:
        return True
    if record.statistics is not None:
        return record.statistics.nan + record.statistics.inf == 0
    return bool(np.isfinite(to_array(load_tensor(dump, record))).all())


def dtype_name(tensor: torch.Tensor) -> str:
    """The torch name of a tensor's dtype without "torch."."""
    return str(tensor.dtype)[6:]


def is_tensor(value: Any) -> bool:
    """Whether a value is a leaf of the tensor kind."""
    return isinstance(value, torch.Tensor)


def torch_value(kind: str, value: Any) -> Any:
    """A torch.dtype, device, layout, memory_format or Size from its text. Devices become the CPU: replay runs there."""
    if kind == "torch.Size":
        return torch.Size(value)
    if kind == "torch.device":
        return torch.device("cpu")
    found = getattr(torch, str(value).replace("torch.", ""), None)
    if found is None:
        raise NotReplayable(f"this torch has no {value}")
    return found


class Resolver:
    """Finds classes by name, only among those that the replay module's own code already reaches, or torch has."""

    def __init__(self, root: Optional[torch.nn.Module]) -> None:
        self._found: dict[str, type] = {}
        spaces: list[dict[str, Any]] = []
        for module in root.modules() if root is not None else ():
            # without descriptors: a ScriptModule's forward cannot be read from its class
            space = getattr(inspect.getattr_static(type(module), "forward", None), "__globals__", None)
            if space is not None and not any(space is known for known in spaces):
                spaces.append(space)
        for space in spaces:
            for value in list(space.values()):
                if isinstance(value, type):
                    self._found.setdefault(class_name(value), value)

    def __call__(self, name: str) -> Optional[type]:
        if name in self._found:
            return self._found[name]
        if name == "collections.OrderedDict":
            from collections import OrderedDict

            return OrderedDict
        if name.startswith("torch."):
            target: Any = torch
            for part in name.split(".")[1:]:
                target = getattr(target, part, None)
            return target if isinstance(target, type) else None
        return None
