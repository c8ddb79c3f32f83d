"""A time budget: when it is used up nothing is begun any more that takes long."""

from __future__ import annotations

import time
from collections.abc import Callable

from precision_align.core.errors import UsageError


class Deadline:
    """``seconds`` from the first :meth:`start`; None: no end. ``clock``: monotonic seconds."""

    def __init__(self, seconds: float | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        if seconds is not None and not seconds > 0:
            raise UsageError(f"a time budget of {seconds:g} s: give the seconds that judging may take, more than 0")
        self.seconds = seconds
        self._clock = clock
        self._end: float | None = None

    @property
    def is_set(self) -> bool:
        """Whether there is an end at all."""
        return self.seconds is not None

    def start(self) -> None:
        """The time runs from here on."""
        if self.seconds is not None and self._end is None:
            self._end = self._clock() + self.seconds

    def is_over(self) -> bool:
        """Whether the time is used up."""
        return self._end is not None and self._clock() >= self._end
