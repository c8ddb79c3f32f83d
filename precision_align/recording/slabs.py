"""Memory for copies that is used again: touching fresh pages costs several times the copy itself.

Copies are cut one behind the other from slabs of a few MiB. A slab is taken again once no array shows any part of it:
NumPy keeps the slab as the base of every view, so its reference count says so, whoever holds the views.
"""

from __future__ import annotations

import sys

import numpy as np

SLAB_BYTES = 4 << 20
# A copy of more than this gets a slab of its own, so that at most so much of a slab's end is left unused.
OWN_BYTES = SLAB_BYTES // 2
# Sizes of slabs for single copies are rounded up, so that those of one model find each other's.
_OWN_STEP = 1 << 16
# Copies run fastest from cache line to cache line.
ALIGNMENT = 64


class Slab:
    """One stretch of memory; ``address``: where its first cache line begins."""

    __slots__ = ("address", "array")

    def __init__(self, size: int) -> None:
        self.array = np.empty(size + ALIGNMENT, dtype=np.uint8)  # owns its memory: it is the base of all views
        start = int(self.array.__array_interface__["data"][0])
        self.address = start + -start % ALIGNMENT

    @property
    def is_free(self) -> bool:
        """Whether nobody has a view of it."""
        return sys.getrefcount(self.array) == 2  # this object and the call itself


class Slabs:
    """Hands slabs out; keeps at most ``limit`` bytes for later use. Not safe from several threads."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._kept: dict[int, list[Slab]] = {}  # by size
        self._kept_bytes = 0

    def find(self, nbytes: int) -> Slab:
        """A free slab of SLAB_BYTES, or of a little more than ``nbytes`` for copies that get one of their own."""
        size = SLAB_BYTES if nbytes <= OWN_BYTES else -(-nbytes // _OWN_STEP) * _OWN_STEP
        kept = self._kept.setdefault(size, [])
        for slab in kept:  # the same ones first, so that they stay in the cache
            if slab.is_free:
                return slab
        if self._kept_bytes + size > self._limit:
            self._drop_free()
        slab = Slab(size)
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
        self._kept_bytes = 0
