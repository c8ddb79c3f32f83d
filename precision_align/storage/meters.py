"""How far a long copy is, told to whoever shows it."""

from __future__ import annotations

from typing import Callable

# Told (done, total) again and again.
Progress = Callable[[int, int], None]


class Meter:
    """Adds up bytes and tells ``progress`` in MiB; ``total`` in bytes."""

    def __init__(self, progress: Progress | None, total: int) -> None:
        self._progress, self._total, self._done = progress, total, 0

    def add(self, nbytes: int) -> None:
        """So many more are done."""
        self._done += nbytes
        if self._progress is not None:
            self._progress(self._done >> 20, -(-self._total >> 20))
