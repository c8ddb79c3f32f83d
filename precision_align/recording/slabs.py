"""Memory for copies that is used again: touching fresh pages costs several times the copy itself.

Copies are cut one behind the other from slabs of a few MiB. A slab is taken again once no array shows any part of it:
NumPy keeps the slab as the base of every view, so its reference count says so, whoever holds the views.
"""

from __future__ import annotations

import sys

import numpy as np

from precision_align.core.dtypes import Array

SLAB_BYTES = 4 << 20
# A copy of more than this gets a slab of its own, so that at most so much of a slab's end is left unused.
_OWN_BYTES = SLAB_BYTES // 2
# Sizes of slabs for single copies are rounded up, so that those of one model find each other's.
_OWN_STEP = 1 << 16
# Copies run fastest from cache line to cache line.
_ALIGNMENT = 64


class _Slab:
    __slots__ = ("address", "array")

    def __init__(self, size: int) -> None:
        self.array = np.empty(size + _ALIGNMENT, dtype=np.uint8)  # owns its memory: it is the base of all views
        self.address = int(self.array.__array_interface__["data"][0])

    @property
    def is_free(self) -> bool:
        return sys.getrefcount(self.array) == 2  # this object and the call itself


class Slabs:
    """Hands out pieces; keeps at most ``limit`` bytes for later use. Not safe from several threads."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._kept: dict[int, list[_Slab]] = {}  # by size
        self._kept_bytes = 0
        self._slab = _Slab(0)
        self._used = self._end = 0

    def take(self, nbytes: int) -> tuple[Array, int, int]:
        """The slab, the offset in it and the address from which ``nbytes`` are the caller's, while he holds a view."""
        if self._used + nbytes > self._end:
            if nbytes > _OWN_BYTES:
                return _cut(self._find(-(-nbytes // _OWN_STEP) * _OWN_STEP), 0)
            self._slab = _Slab(0)  # let go of the last one first: it may be free by now
            self._slab = self._find(SLAB_BYTES)
            self._used, self._end = 0, SLAB_BYTES
        start, self._used = self._used, (self._used + nbytes + _ALIGNMENT - 1) & -_ALIGNMENT
        return _cut(self._slab, start)

    def _find(self, size: int) -> _Slab:
        kept = self._kept.setdefault(size, [])
        for slab in kept:  # the same ones first, so that they stay in the cache
            if slab.is_free:
                return slab
        if self._kept_bytes + size > self._limit:
            self._drop_free()
        slab = _Slab(size)
        if self._kept_bytes + size <= self._limit:
            kept.append(slab)
            self._kept_bytes += size
        return slab

    def _drop_free(self) -> None:
        for size, kept in self._kept.items():
            busy = [slab for slab in kept if not slab.is_free]
            self._kept_bytes -= size * (len(kept) - len(busy))
            kept[:] = busy

    def clear(self) -> None:
        """Give the memory back as soon as nobody uses it."""
        self._kept.clear()
        self._kept_bytes = self._used = self._end = 0
        self._slab = _Slab(0)


def _cut(slab: _Slab, start: int) -> tuple[Array, int, int]:
    offset = start + -slab.address % _ALIGNMENT
    return slab.array, offset, slab.address + offset
