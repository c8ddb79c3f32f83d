"""Events from outside the program: a signal, a file that appears, an environment variable."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any, Callable

from precision_align.core.errors import UsageError


class SignalListener:
    """Counts the deliveries of one signal until closed; a handler of the user's still runs."""

    def __init__(self, name: str) -> None:
        number = getattr(signal, name if name.startswith("SIG") else f"SIG{name}", None)
        if not isinstance(number, signal.Signals):
            raise UsageError(f"there is no signal {name!r}; SIGUSR1 and SIGUSR2 are free for use")
        if threading.current_thread() is not threading.main_thread():
            raise UsageError(f"the signal {name} can be listened to from the main thread only")
        self._number, self.count = number, 0
        try:
            self._previous = signal.signal(number, self._hear)
        except (OSError, ValueError) as error:
            raise UsageError(f"the signal {name} cannot be listened to: {error}") from error

    def _hear(self, number: int, frame: Any) -> None:
        self.count += 1
        if callable(self._previous):
            self._previous(number, frame)

    def close(self) -> None:
        """Put the old handler back, unless somebody has put his own in our place."""
        if signal.getsignal(self._number) == self._hear:
            signal.signal(self._number, self._previous if self._previous is not None else signal.SIG_DFL)


class Switch:
    """Whether recording is on, asked at the start of every step: "file:PATH" while it exists, "env:NAME" while it is
    set to anything but "" and "0", "signal:USR1" off at first and changed by every delivery.

    Raises UsageError for any other text.
    """

    def __init__(self, text: str) -> None:
        kind, colon, rest = text.partition(":")
        if not colon or not rest or kind not in ("file", "env", "signal"):
            raise UsageError(f"a switch is file:PATH, env:NAME or signal:NAME, not {text!r}")
        self.text = text
        self._listener = SignalListener(rest) if kind == "signal" else None
        self._is_on = _make_check(kind, rest)

    def is_on(self) -> bool:
        """Now."""
        return self._listener.count % 2 == 1 if self._listener is not None else self._is_on()

    def count(self) -> int:
        """How often it was switched on, as far as is known: for signals the deliveries, else 0 or 1."""
        return self._listener.count if self._listener is not None else int(self._is_on())

    def close(self) -> None:
        """Let go of the signal."""
        if self._listener is not None:
            self._listener.close()


def _make_check(kind: str, rest: str) -> Callable[[], bool]:
    if kind == "env":
        return lambda: os.environ.get(rest, "") not in ("", "0")
    return Path(rest).absolute().exists
