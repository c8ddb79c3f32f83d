"""Two tensors on one memory: an `npu` tensor for a CPU tensor's bytes, and the other way round.

A DLPack capsule carries the device as two 32-bit integers. Rewriting them between export and import gives an ordinary
``torch.Tensor`` on the device type of our choice over the same memory, with its owner kept alive and nothing copied.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import torch

from precision_align.devices.dispatch import DispatchKey

# DLPack's own constants (dlpack.h): kDLCPU and kDLExtDev; torch reads the latter as PrivateUse1.
_CPU_TYPE = 1
_EXTENSION_TYPE = 12
# DLTensor starts with `void* data`, then the device as {int32 type, int32 index}.
_TYPE_OFFSET = 8
_INDEX_OFFSET = 12

_get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_get_pointer.restype = ctypes.c_void_p
_get_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]

_as_strided = torch.ops.aten.as_strided.default._op_dk

# DLPack has no code for these; they travel as words of the same width.
_AS_WORDS = {torch.complex32: torch.int32}


def _retag(tensor: torch.Tensor, device_type: int) -> torch.Tensor:
    capsule = torch._C._to_dlpack(tensor)
    address = _get_pointer(capsule, b"dltensor")
    ctypes.c_int32.from_address(address + _TYPE_OFFSET).value = device_type
    ctypes.c_int32.from_address(address + _INDEX_OFFSET).value = 0
    alias: torch.Tensor = torch._C._from_dlpack(capsule)
    # DLPack normalises the strides of dimensions of size 0 or 1; operators that look at layout would see a difference.
    if alias.stride() != tensor.stride():
        alias = _as_strided(DispatchKey.CPU, alias, tensor.shape, tensor.stride(), alias.storage_offset())
    return alias


def _retag_any(tensor: torch.Tensor, device_type: int) -> torch.Tensor:
    words = _AS_WORDS.get(tensor.dtype)
    if words is None:
        return _retag(tensor, device_type)
    return _retag(tensor.view(words), device_type).view(tensor.dtype)


def alias_on_cpu(tensor: torch.Tensor) -> torch.Tensor:
    """A CPU tensor over the memory of an `npu` tensor, of equal shape, strides, dtype, conj and neg bits."""
    if tensor.numel() == 0:
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
    # The capsule holds the stored values: a pending conjugation or negation is not in them and is put back.
    alias = _retag_any(tensor, _CPU_TYPE)
    alias = torch._neg_view(alias) if tensor.is_neg() else alias
    return torch._conj(alias) if tensor.is_conj() else alias


def alias_on_npu(tensor: torch.Tensor) -> torch.Tensor:
    """An `npu` tensor over the memory of a CPU tensor; pending conj and neg are carried out first."""
    if tensor.layout != torch.strided or tensor.is_quantized:
        kind = "quantized" if tensor.is_quantized else str(tensor.layout)
        raise NotImplementedError(f"The simulated NPU holds dense tensors only, not {kind}; keep this one on the CPU.")
    if tensor.numel() == 0:
        alias = _retag_any(torch.empty(1, dtype=tensor.dtype), _EXTENSION_TYPE)
        empty: torch.Tensor = _as_strided(DispatchKey.CPU, alias, tensor.shape, tensor.stride(), 0)
        return empty
    if tensor._is_zerotensor():
        # It has no memory; operators on the CPU know, a plain tensor on the device cannot.
        tensor = torch.zeros(tensor.shape, dtype=tensor.dtype)
    return _retag_any(tensor.resolve_conj().resolve_neg(), _EXTENSION_TYPE)


def restride(tensor: torch.Tensor, shape: Sequence[int], stride: Sequence[int], offset: int) -> torch.Tensor:
    """A view of an `npu` tensor's storage, ``offset`` elements from its start."""
    view: torch.Tensor = _as_strided(DispatchKey.CPU, tensor, shape, stride, offset)
    return view


def check_index(device: Any) -> None:
    """Raise RuntimeError for any device but index 0; there is one simulated device."""
    if device is None:
        return
    index = device if isinstance(device, int) else torch.device(device).index
    if index not in (None, 0, -1):
        raise RuntimeError(f"The simulated NPU has one device, npu:0; {device!r} was asked for.")


def is_on_npu(value: Any) -> bool:
    """Whether the value is a tensor of the device type `npu`."""
    return isinstance(value, torch.Tensor) and value.device.type == "npu"


def let_storages_be_made() -> None:
    """Make ``torch.UntypedStorage(n, device="npu")`` work: without an allocator torch reads a null pointer there.

    deepcopy and ``torch.load(map_location="npu")`` make storages this way.
    """
    make = torch.UntypedStorage.__new__

    def make_on_npu_too(cls: Any, *args: Any, **kwargs: Any) -> Any:
        device = kwargs.get("device")
        if device is None or torch.device(device).type != "npu":
            return make(cls, *args, **kwargs)
        size = int(args[0]) if args else int(kwargs.get("size", 0))
        return alias_on_npu(torch.empty(size, dtype=torch.uint8)).untyped_storage()

    torch.UntypedStorage.__new__ = staticmethod(make_on_npu_too)  # type: ignore[method-assign]
