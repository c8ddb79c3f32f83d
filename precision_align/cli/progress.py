"""Progress on stderr for everything that takes longer than two seconds: how far, how fast, how long still."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Callable, TextIO

QUIET_SECONDS = 2.0  # what is over sooner needs no progress line
_REDRAW_SECONDS = 0.2  # on a terminal: as fast as one reads
_LOG_SECONDS = 10.0  # in a log file: a line now and then


class Progress:
    """Call it with (done, total); a context manager that leaves the terminal line clean."""

    def __init__(self, label: str, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._label = label
        self._stream = sys.stderr if stream is None else stream
        self._clock = clock
        self._live = self._stream.isatty()
        self._start = clock()
        self._drawn = self._start + QUIET_SECONDS - (_REDRAW_SECONDS if self._live else _LOG_SECONDS)
        self._first: tuple[float, int] | None = None
        self._width = 0

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._width:
            self._stream.write("\r" + " " * self._width + "\r")
            self._stream.flush()

    def __call__(self, done: int, total: int) -> None:
        """Say that ``done`` of ``total`` is behind us; ``total`` 0 where it is not known."""
        now = self._clock()
        # the rate counts from the first call: what came before was loading, not work
        self._first = self._first or (now, done)
        pause = _REDRAW_SECONDS if self._live else _LOG_SECONDS
        if now - self._start < QUIET_SECONDS or now - self._drawn < pause:
            return
        self._drawn = now
        text = phrase_progress(self._label, done, total, done - self._first[1], now - self._first[0])
        if self._live:
            self._stream.write("\r" + text.ljust(self._width))
            self._width = len(text)
        else:
            self._stream.write(text + "\n")
        self._stream.flush()


def phrase_progress(label: str, done: int, total: int, counted: int, seconds: float) -> str:
    """ "judging 120/800, 60/s, 11 s left"; ``counted`` items took ``seconds``."""
    rate = counted / seconds if seconds > 0 else 0.0
    parts = [f"{label} {done}/{total}" if total else f"{label} {done}"]
    if rate > 0:
        parts.append(f"{rate:.3g}/s")
        parts += [f"{format_seconds((total - done) / rate)} left"] if total else []
    return ", ".join(parts)


def format_seconds(seconds: float) -> str:
    """ "11 s", "2 min 05 s", "1 h 10 min"."""
    whole = max(int(seconds + 0.5), 0)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
