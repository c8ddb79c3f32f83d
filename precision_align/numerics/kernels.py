"""Which difference kernel runs: compiled where a compiler is, else numba where it is installed, else NumPy.

All give the same counts, positions and extremes, bit for bit, and sums that agree within float64 rounding.
"""

from __future__ import annotations

import os
from functools import cache
from importlib.util import find_spec
from typing import Protocol

from precision_align.core.dtypes import Array
from precision_align.core.errors import Unavailable, UsageError
from precision_align.numerics.blocked import BlockedKernel
from precision_align.numerics.compiled import load_compiled
from precision_align.numerics.tallies import Tally

VARIABLE = "PRECISION_ALIGN_KERNEL"
NAMES = ("compiled", "numba", "numpy")
_MISSING = {
    "compiled": "there is no C compiler (cc, gcc or clang), or no cache folder to keep its output in",
    "numba": "numba is not installed or does not work here: pip install 'precision-align[analysis]'",
}


class Kernel(Protocol):
    """One pass over a pair of 1-D arrays.

    ``name``: "compiled", "numba" or "numpy"; ``forms``: the word types it takes as they are, by the names of
    :mod:`~precision_align.core.dtypes`; ``threaded``: whether several calls at a time make sense.
    """

    @property
    def name(self) -> str: ...

    @property
    def forms(self) -> frozenset[str]: ...

    @property
    def threaded(self) -> bool: ...

    def add(self, tally: Tally, left: Array, right: Array, form: str) -> None:
        """Tally contiguous, aligned 1-D arrays of one length into an empty tally."""


def choose_kernel(name: str = "") -> Kernel:
    """The kernel asked for by name or by PRECISION_ALIGN_KERNEL, else the fastest there is.

    Raises UsageError for an unknown name, Unavailable for a kernel that this machine does not have.
    """
    wanted = name or os.environ.get(VARIABLE, "")
    if not wanted:
        return _find_fastest()
    if wanted not in NAMES:
        raise UsageError(f"{VARIABLE} is {wanted!r}; it may be {', '.join(NAMES)}, or empty for the fastest")
    found = _load(wanted)
    if found is None:
        raise Unavailable(f"the {wanted} kernel was asked for ({VARIABLE}), but {_MISSING[wanted]}")
    return found


def kernel_name() -> str:
    """Which kernel runs."""
    return choose_kernel().name


@cache
def _find_fastest() -> Kernel:
    return next(kernel for kernel in map(_load, NAMES) if kernel is not None)


@cache
def _load(name: str) -> Kernel | None:
    if name == "numpy":
        return BlockedKernel()
    return load_compiled() if name == "compiled" else _load_jitted()


def _load_jitted() -> Kernel | None:
    if find_spec("numba") is None:
        return None
    try:
        from precision_align.numerics.jitted import JittedKernel
    except (ImportError, AttributeError, SystemError):  # a numba that does not fit this NumPy
        return None
    return JittedKernel()
