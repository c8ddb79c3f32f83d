"""The compiled path of recording, built where there is a C compiler with Python's headers, at the first session.

Its twin in Python makes the same dump: set ``PRECISION_ALIGN_RECORDING=python`` to have that one.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import sys
import sysconfig
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch

from precision_align.numerics.building import build_library
from precision_align.recording import plain
from precision_align.recording.copies import Staged
from precision_align.recording.slabs import ALIGNMENT, Slabs
from precision_align.recording.trays import Tray

_NUMBERS: Any = ctypes.POINTER(ctypes.c_int64)
# In the order of the fields of ``Shims``, with what each gives.
_SHIMS: dict[str, Any] = {
    "data_ptr": ctypes.c_void_p,
    "sizes": _NUMBERS,
    "strides": _NUMBERS,
    "dim": ctypes.c_int64,
    "dtype": ctypes.c_int32,
    "device_type": ctypes.c_int32,
    "layout": ctypes.c_int32,
    "storage_offset": ctypes.c_int64,
    "storage_size": ctypes.c_int64,
}
VARIABLE = "PRECISION_ALIGN_RECORDING"
_SOURCE = Path(__file__).with_name("module.c")


def load_native() -> Any:
    """The compiled module, or None where it is not wanted or cannot be."""
    return None if os.environ.get(VARIABLE) == "python" else _load()


@cache
def _load() -> Any:
    headers = Path(sysconfig.get_paths()["include"])
    if sys.implementation.name != "cpython" or sysconfig.get_config_var("Py_GIL_DISABLED"):
        return None
    if not (headers / "Python.h").is_file():
        return None
    path = build_library(_SOURCE, (f"-I{headers}",), f"{sys.version} {sysconfig.get_config_var('SOABI')}")
    if path is None:
        return None
    spec = importlib.util.spec_from_file_location(f"{__name__}.module", path)
    if spec is None or spec.loader is None:
        return None
    try:
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    except ImportError:  # built on another machine that shares this home
        return None
    return module


def make_copier(slabs: Slabs) -> Any:
    """What copies plain tensors, compiled or not."""
    native = load_native()
    if native is None:
        return plain.Copier(slabs)
    return native.Copier(
        slabs=slabs,
        make_form=plain.make_form,
        staged_type=Staged,
        strided=plain.STRIDED,
        is_transformed=plain.is_transformed,
        transforms=getattr(getattr(torch._C, "_functorch", None), "peek_interpreter_stack", _find_none),
        shims=_find_shims(),
        max_held=plain.REUSED_BYTES,
        max_copies=plain.REUSED_COPIES,
        max_forms=plain.KNOWN_FORMS,
        slab_bytes=plain.SLAB_BYTES,
        own_bytes=plain.OWN_BYTES,
        alignment=ALIGNMENT,
        long_bytes=plain.LONG_BYTES,
    )


def _find_none() -> None:
    return None


@cache
def _find_shims() -> tuple[int, ...]:
    """Addresses of torch's functions for compiled code, in the order of ``Shims``; empty where it lacks one, or where
    they do not say what Python says.
    """
    try:
        library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
        functions = [getattr(library, f"aoti_torch_get_{name}") for name in _SHIMS]
    except (OSError, AttributeError):  # an older torch, or one that was built in another way
        return ()
    looked = torch.arange(24, dtype=torch.float64, device="cpu").view(2, 3, 4)[1:, :, 1:]
    handle = ctypes.byref(ctypes.c_void_p(looked._cdata))
    return tuple(map(_address_of, functions)) if _describe(functions, handle, looked.dim()) == _expect(looked) else ()


def _describe(functions: Sequence[Any], handle: Any, dim: int) -> list[Any]:
    found: list[Any] = []
    for kind, function in zip(_SHIMS.values(), functions):
        answer = kind()
        if function(handle, ctypes.byref(answer)):
            return []
        found.append(answer[:dim] if kind is _NUMBERS else answer.value)
    return found


def _expect(looked: torch.Tensor) -> list[Any]:
    storage = looked.untyped_storage()
    float64 = 7  # c10/core/ScalarType.h; CPU and strided are 0
    shape, stride = list(looked.shape), list(looked.stride())
    return [looked.data_ptr(), shape, stride, looked.dim(), float64, 0, 0, looked.storage_offset(), storage.nbytes()]


def _address_of(function: Any) -> int:
    return int(ctypes.cast(function, ctypes.c_void_p).value or 0)


def make_tray() -> Any:
    """What holds records until they are handed to the sink, compiled or not."""
    native = load_native()
    return Tray() if native is None else native.Tray()
