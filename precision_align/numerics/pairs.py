"""Pairs of tensors as the kernels want them: contiguous pieces, in a word type that both sides share."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Callable

import numpy as np

from precision_align.core.dtypes import DTYPES, Array, Dtype, widen

# Elements: a piece of float32 is 4 MiB a side, long enough that starting it costs nothing, short enough for threads to
# share a tensor evenly and for its pages to be let go of soon.
SPAN = 1 << 20
# Elements of a piece that has to be converted or gathered first: 0.5 MiB of float64 a side.
SMALL = 1 << 16

_QUANTIZED = {"qint8": "int8", "quint8": "uint8", "qint32": "int32"}
# The types that NumPy has too, under the same names.
_PLAIN = frozenset(row.name for row in DTYPES.values() if row.name == np.dtype(row.word).name)

Read = Callable[[Array], Array]
# Told the bounds of elements that are not needed any more.
Release = Callable[[int, int], None]


@dataclass(frozen=True)
class Plan:
    """How to tally a pair of dtypes.

    ``form``: the kernel's word type, or "" where only the general NumPy code will do; ``actual``, ``expected``: what
    turns a block of words of each side into that form; None: nothing.
    """

    form: str
    actual: Read | None = None
    expected: Read | None = None

    @cached_property
    def is_direct(self) -> bool:
        """Whether the kernel takes the words as they are."""
        return bool(self.form) and self.actual is None and self.expected is None


def read_array(array: Array) -> tuple[Array, Dtype]:
    """An array of numbers and the table row of its type; a type that the table lacks (longdouble) becomes float64.

    Raises TypeError where it does not hold numbers.
    """
    kind, name = array.dtype.kind, array.dtype.name
    if kind not in "fiubc":
        raise TypeError(f"arrays of {array.dtype} are not compared")
    if name not in _PLAIN:
        array = array.astype(np.complex128 if kind == "c" else np.float64)
    return array, DTYPES[array.dtype.name]


def make_plan(actual: Dtype, expected: Dtype, forms: frozenset[str]) -> Plan:
    """The plan of two dtypes for a kernel that takes ``forms``."""
    return _make_plan(actual.name, expected.name, forms)  # a name is hashed at once, a row of the table is not


@cache
def _make_plan(actual_name: str, expected_name: str, forms: frozenset[str]) -> Plan:
    actual, expected = DTYPES[actual_name], DTYPES[expected_name]
    same = _QUANTIZED.get(actual.name, actual.name)
    if actual == expected and same in forms:
        return Plan(same)
    if actual.kind == expected.kind == "float":
        form = "float64" if "float64" in (actual.name, expected.name) else "float32"
        return Plan(form, _reader(actual, form), _reader(expected, form))
    return Plan("", _reader(actual, ""), _reader(expected, ""))


def _reader(dtype: Dtype, form: str) -> Read | None:
    if dtype.name == form or (not form and _is_plain(dtype)):
        return None
    if form:
        return lambda words: np.asarray(widen(words, dtype), dtype=form)
    return lambda words: widen(words, dtype)


def _is_plain(dtype: Dtype) -> bool:
    """Whether the words of a dtype are its numbers."""
    return dtype.name not in ("bfloat16", "complex32") and not dtype.name.startswith("float8")


def is_plain(words: Array) -> bool:
    """Whether the elements of a tensor lie in C order, aligned and native."""
    flags = words.flags
    return flags.c_contiguous and flags.aligned and words.dtype.isnative


class Flat:
    """A tensor as a row of elements in C order, whatever its layout: pieces come contiguous, aligned and native."""

    def __init__(self, words: Array) -> None:
        self.plain = is_plain(words)
        self._flat = words.reshape(-1) if words.flags.c_contiguous else words.flat
        self._native = words.dtype if self.plain else words.dtype.newbyteorder("=")

    def piece(self, start: int, stop: int) -> Array:
        """Elements ``start`` to ``stop``: a view where the tensor allows it."""
        found = self._flat[start:stop]
        return found if self.plain else np.array(found, dtype=self._native)


def cut(size: int, step: int) -> Iterator[tuple[int, int]]:
    """The bounds of pieces of ``step`` elements."""
    for start in range(0, size, step):
        yield start, min(start + step, size)
