"""Which steps have begun: a long run's numbers in little memory."""

from __future__ import annotations


class Begun:
    """Numbers that were added; those that come one after the other take no room."""

    def __init__(self) -> None:
        self._stretch = range(0)
        self._others: set[int] = set()

    def add(self, number: int) -> bool:
        """Whether it was there before."""
        if number in self._stretch or number in self._others:
            return True
        if not self._stretch:
            self._stretch = range(number, number + 1)
        elif number == self._stretch.stop:
            self._stretch = range(self._stretch.start, number + 1)
        else:
            self._others.add(number)
        return False
