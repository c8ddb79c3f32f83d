"""A queue bounded in bytes between one or more producers and one consumer."""

from __future__ import annotations

import threading
from collections import deque
from typing import Callable, Generic, TypeVar

Item = TypeVar("Item")


class ByteQueue(Generic[Item]):
    """First in, first out; ``put`` waits while more than ``limit`` bytes are queued (one larger item may pass).

    The lock is taken once an item: the consumer takes it only where somebody waits, or to wait itself.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._items: deque[tuple[Item, int]] = deque()
        self._put_bytes = self._taken_bytes = 0  # each written by one side only
        self._changed = threading.Condition(threading.Lock())
        self._blocked = 0  # producers that wait for room or emptiness
        self._idle = False  # the consumer waits for an item

    def put(self, item: Item, nbytes: int = 0, patience: float | None = None) -> bool:
        """Append an item that weighs ``nbytes``; waits until it fits or the queue holds no bytes.

        ``patience``: for how many seconds at most (None: for ever); False where it was not taken then.
        """
        with self._changed:
            if not self._fits(nbytes) and not self._wait(lambda: self._fits(nbytes), patience):
                return False
            self._append(item, nbytes)
            return True

    def force(self, item: Item, nbytes: int = 0) -> None:
        """Append an item whatever is queued."""
        with self._changed:
            self._append(item, nbytes)

    @property
    def nbytes(self) -> int:
        """What is queued now."""
        return self._put_bytes - self._taken_bytes

    def get(self) -> Item:
        """Return the oldest item; waits for one. It counts as queued until :meth:`release`."""
        return self.get_several(1, 0)[0]

    def get_several(self, count: int, nbytes: int) -> list[Item]:
        """As :meth:`get`, of up to so many that have come, until they weigh so much."""
        if not self._items:
            with self._changed:
                self._idle = True
                while not self._items:
                    self._changed.wait()
                self._idle = False
        found: list[Item] = []
        for number in range(min(count, len(self._items))):  # by number: producers append meanwhile
            item, weight = self._items[number]
            found.append(item)
            nbytes -= weight
            if nbytes <= 0:
                break
        return found

    def release(self, count: int = 1) -> None:
        """The oldest items, which :meth:`get` returned, are dealt with: let waiting producers go on."""
        for _ in range(count):
            self._taken_bytes += self._items.popleft()[1]
        if self._blocked:  # set before its owner looks at the bytes: either it has seen these, or it is notified
            with self._changed:
                self._changed.notify_all()

    def wait_empty(self) -> None:
        """Wait until every item is dealt with."""
        with self._changed:
            self._wait(lambda: not self._items, None)

    def _fits(self, nbytes: int) -> bool:
        queued = self.nbytes
        return not queued or queued + nbytes <= self._limit

    def _wait(self, condition: Callable[[], bool], patience: float | None) -> bool:
        self._blocked += 1
        try:
            return self._changed.wait_for(condition, patience)
        finally:
            self._blocked -= 1

    def _append(self, item: Item, nbytes: int) -> None:
        self._items.append((item, nbytes))
        self._put_bytes += nbytes
        if self._idle:
            self._changed.notify_all()
