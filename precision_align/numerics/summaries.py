"""The compiled forms of the statistics, of the hash and of the sketch: the functions of summary.c.

Where there is no compiler :mod:`~precision_align.numerics.statistics`, :mod:`~precision_align.numerics.folding` and
:mod:`~precision_align.numerics.sketches` do the same in NumPy: the hash and the sketch bit for bit, counts and extremes
too, sums within float64 rounding.
"""

from __future__ import annotations

import ctypes
import math
import os
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from precision_align.core.dtypes import Array
from precision_align.core.records import Statistics
from precision_align.numerics.addresses import find_address
from precision_align.numerics.building import load_library

SOURCE = Path(__file__).with_name("summary.c")
VERSION = 3
FORMS = ("float32", "bfloat16", "float16", "float64")
# The same variable that chooses the difference kernel: anything but "compiled" (or nothing) asks for NumPy here.
VARIABLE = "PRECISION_ALIGN_KERNEL"


class _Summary(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int64) for name in ("nan", "inf", "zero", "subnormal")),
        *((name, ctypes.c_double) for name in ("minimum", "maximum", "sum", "sum_rest", "square", "square_rest")),
    )


# One tensor of many, as struct job of summary.c has it.
JOB = np.dtype(
    [
        ("data", "<u8"),
        ("count", "<i8"),
        ("nbytes", "<i8"),
        ("form", "<i8"),
        ("buckets", "<i8"),
        ("sketch", "<u8"),
        ("digest", "u1", (16,)),
        *((field[0], "<i8" if field[1] is ctypes.c_int64 else "<f8") for field in _Summary._fields_),
    ]
)
# The number of a form in a job, and by number the bytes of a word; 0 is any other dtype.
FORM_NUMBERS = {form: number for number, form in enumerate(FORMS, 1)}
FORM_SIZES = np.array([1, 4, 2, 2, 8])


class CompiledSummaries:
    """Safe from several threads; the interpreter's lock is free meanwhile."""

    def __init__(self, library: ctypes.CDLL) -> None:
        pointer, size = ctypes.c_void_p, ctypes.c_int64
        self._summarize: dict[str, Any] = {}
        for form in FORMS:
            self._summarize[form] = function = library[f"summarize_{form}"]
            function.argtypes, function.restype = [pointer, size, pointer], None
        self._summarize_many = library["summarize_many"]
        self._summarize_many.argtypes, self._summarize_many.restype = [pointer, size, pointer, pointer], None
        self._fold = library["fold_blocks"]
        self._digest = library["digest_payload"]
        for function in (self._fold, self._digest):
            function.argtypes, function.restype = [pointer, size, pointer, pointer], None

    def summarize(self, blocks: Iterable[Array], form: str) -> Statistics:
        """The statistics of contiguous pieces of one tensor, whole multiples of 4096 elements but for the last.

        Of a float64 tensor whose squares overflow or vanish, l2 is wrong.
        """
        found = _Summary(minimum=math.inf, maximum=-math.inf)
        function, place, size = self._summarize[form], ctypes.addressof(found), 0
        for words in blocks:
            function(find_address(words), words.size, place)
            size += words.size
        finite = size - found.nan - found.inf
        counts = (size, found.nan, found.inf, found.zero, found.subnormal)
        if not finite:
            return Statistics(*counts, math.nan, math.nan, math.nan, math.nan)
        mean = (found.sum + found.sum_rest) / finite
        return Statistics(*counts, found.minimum, found.maximum, mean, math.sqrt(found.square + found.square_rest))

    def summarize_many(self, jobs: Array, keys: Array, signs: Array) -> None:
        """Fill in digest, statistics and sketch of JOB[n] whose first six columns say where each tensor lies.

        ``keys``: uint64[384] of the fold; ``signs``: float32, both sequences of the sketch one behind the other.
        """
        self._summarize_many(find_address(jobs), jobs.size, find_address(keys), find_address(signs))

    def fold(self, data: Array, table: Array, sums: Array) -> None:
        """Add uint8[n] to zeroed sums, uint64[256] for each 256 KiB; ``table``: the keys, uint64[384]."""
        self._fold(find_address(data), data.size, find_address(table), find_address(sums))

    def digest(self, words: Array, table: Array) -> bytes:
        """The hash of C-contiguous words, see :mod:`~precision_align.storage.hashing`; ``table``: as for ``fold``."""
        result = ctypes.create_string_buffer(16)
        self._digest(find_address(words), words.nbytes, find_address(table), result)
        return result.raw


@cache
def load_summaries() -> CompiledSummaries | None:
    """The compiled functions, or None: no compiler, another kernel asked for, or a big-endian machine."""
    if os.environ.get(VARIABLE, "compiled") not in ("", "compiled") or sys.byteorder != "little":
        return None
    library = load_library(SOURCE)
    if library is None or library.summary_version() != VERSION:
        return None
    return CompiledSummaries(library)
