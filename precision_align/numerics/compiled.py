"""The fastest difference kernel: the functions of difference.c, called without the interpreter's lock."""

from __future__ import annotations

import ctypes
from typing import Any

from precision_align.core.dtypes import Array
from precision_align.numerics.addresses import find_address
from precision_align.numerics.building import load_library
from precision_align.numerics.tallies import VERSION, Tally

_FORMS = (
    "float32",
    "bfloat16",
    "float16",
    "float64",
    "bool",
    "uint8",
    "int8",
    "int16",
    "uint16",
    "int32",
    "uint32",
)
SPREAD_FORMS = ("float32", "bfloat16", "float16", "float64")


class CompiledKernel:
    """Takes raw words of most types, aligned or not; see :class:`~precision_align.numerics.kernels.Kernel`."""

    name = "compiled"
    threaded = True
    forms = frozenset(_FORMS)

    def __init__(self, library: ctypes.CDLL) -> None:
        pointer, size = ctypes.c_void_p, ctypes.c_int64
        self._add: dict[str, Any] = {}
        self._spread: dict[str, Any] = {}
        for form in _FORMS:
            self._add[form] = function = library[f"difference_{form}"]
            function.argtypes, function.restype = [pointer, pointer, size, ctypes.POINTER(Tally)], None
        for form in SPREAD_FORMS:
            self._spread[form] = function = library[f"spread_{form}"]
            function.argtypes, function.restype = [pointer, pointer, size, pointer, pointer], None

    def add(self, tally: Tally, left: Array, right: Array, form: str) -> None:
        """Tally contiguous 1-D arrays of words of one length, into an empty tally."""
        self._add[form](find_address(left), find_address(right), left.size, tally)

    def spread(self, left: Array, right: Array, form: str, ulps: Array, bins: Array) -> None:
        """Add to the two histograms of :mod:`~precision_align.numerics.spreads`, int64."""
        left_place, right_place, *places = map(find_address, (left, right, ulps, bins))
        self._spread[form](left_place, right_place, left.size, *places)


def load_compiled() -> CompiledKernel | None:
    """The kernel, or None where there is no compiler or no cache folder."""
    library = load_library()
    if library is None or library.difference_version() != VERSION:
        return None
    return CompiledKernel(library)
