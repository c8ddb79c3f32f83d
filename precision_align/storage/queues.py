"""A queue bounded in bytes between one or more producers and one consumer."""

from __future__ import annotations

import threading
from collections import deque
from typing import Generic, TypeVar

Item = TypeVar("Item")


class ByteQueue(Generic[Item]):
    """First in, first out; ``put`` waits while more than ``limit`` bytes are queued (one larger item may pass)."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._items: deque[tuple[Item, int]] = deque()
        self._bytes = 0
        self._changed = threading.Condition(threading.Lock())

    def put(self, item: Item, nbytes: int = 0, patience: float | None = None) -> bool:
        """Append an item that weighs ``nbytes``; waits until it fits or the queue holds no bytes.

        ``patience``: for how many seconds at most (None: for ever); False where it was not taken then.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: not self._bytes or self._bytes + nbytes <= self._limit, patience):
                return False
            self._items.append((item, nbytes))
            self._bytes += nbytes
            self._changed.notify_all()
            return True

    @property
    def nbytes(self) -> int:
        """What is queued now."""
        return self._bytes

    def force(self, item: Item, nbytes: int = 0) -> None:
        """Append an item whatever is queued."""
        with self._changed:
            self._items.append((item, nbytes))
            self._bytes += nbytes
            self._changed.notify_all()

    def get(self) -> Item:
        """Remove and return the oldest item; waits for one. Its bytes count as queued until :meth:`release`."""
        with self._changed:
            while not self._items:
                self._changed.wait()
            return self._items[0][0]

    def release(self) -> None:
        """The item that :meth:`get` returned is dealt with: forget it and let waiting producers go on."""
        with self._changed:
            self._bytes -= self._items.popleft()[1]
            self._changed.notify_all()

    def wait_empty(self) -> None:
        """Wait until every item is dealt with."""
        with self._changed:
            while self._items:
                self._changed.wait()
