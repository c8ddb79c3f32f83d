"""Where the numbers of an array lie, for compiled code: through NumPy's array interface in C, whose struct is fixed."""

from __future__ import annotations

import ctypes
from typing import Any

from precision_align.core.dtypes import Array


class _Interface(ctypes.Structure):
    """PyArrayInterface, as the documentation of ``__array_struct__`` has it."""

    _fields_ = (
        *((name, ctypes.c_int) for name in ("two", "nd")),
        ("typekind", ctypes.c_char),
        *((name, ctypes.c_int) for name in ("itemsize", "flags")),
        *((name, ctypes.c_void_p) for name in ("shape", "strides", "data")),
    )
    data: int


# A function object of our own: the types set on ctypes.pythonapi's would be everybody's.
_get_pointer: Any = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)
_read = _Interface.from_address


def find_address(array: Array) -> int:
    """The address of the first element, valid as long as the array lives: half the cost of ``__array_interface__``."""
    capsule = array.__array_struct__  # it owns the struct
    return _read(_get_pointer(capsule, None)).data
