"""One tensor of a foreign recording: where it is, and what is known of it before it is read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable, Optional

import numpy as np

from precision_align.core.dtypes import Array, Dtype, dtype_of
from precision_align.core.keys import Key
from precision_align.core.records import Statistics

# NumPy types whose name is that of the logical type; others (structured, text, object) hold no tensor.
_BY_NUMPY = {
    np.dtype(dtype_of(name).word): name
    for name in (
        "float64",
        "float32",
        "float16",
        "complex128",
        "complex64",
        "bool",
        "uint8",
        "int8",
        "int16",
        "int32",
        "int64",
        "uint16",
        "uint32",
        "uint64",
    )
}


class Unreadable(Exception):
    """One tensor of a foreign recording cannot be read; the text says why. The others still can."""


@dataclass(frozen=True)
class Tensor:
    """Raw words in their logical shape and the torch name of their dtype; the words may be a read-only view."""

    words: Array
    dtype: str


@dataclass(frozen=True)
class Item:
    """``load`` gives the tensor, raising :class:`Unreadable`; None where only ``statistics`` were recorded.

    ``order``: position in the recording; ``shape``, ``dtype``: as recorded, for items that are never loaded.
    """

    key: Key
    order: int
    load: Optional[Callable[[], Tensor]]
    statistics: Optional[Statistics] = None
    shape: tuple[int, ...] = ()
    dtype: str = ""
    requires_grad: bool = False
    reason: str = ""


def name_numpy(dtype: np.dtype[np.generic]) -> str:
    """The torch name of a NumPy type. Raises Unreadable for one that no tensor has."""
    try:
        return _BY_NUMPY[dtype.newbyteorder("<")]
    except KeyError:
        raise Unreadable(f"values of type {dtype} are no tensor") from None


def native_words(array: Array) -> Array:
    """The same numbers in the little-endian, C-ordered form of a dump."""
    little = array.astype(array.dtype.newbyteorder("<"), copy=False)
    return little if little.flags.c_contiguous else np.ascontiguousarray(little).reshape(array.shape)


def require_known(name: str) -> Dtype:
    """The row of a torch dtype name. Raises Unreadable."""
    try:
        return dtype_of(name)
    except KeyError:
        raise Unreadable(f"dtype {name} is not supported in this version") from None
