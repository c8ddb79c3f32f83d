"""What goes along with a session besides hooks: each companion hears of its steps and batches."""

from __future__ import annotations

import contextlib
from typing import Any


class Companion:
    """One watcher of a running session. The session calls these inside a guard: an exception becomes a note."""

    def start(self, cleanup: contextlib.ExitStack) -> None:
        """The session opens; what is put in place here is undone through ``cleanup``."""

    def start_step(self) -> None:
        """A step begins, recorded or not."""

    def start_batch(self, args: Any, kwargs: Any) -> None:
        """The model is about to be called with these arguments."""

    def finish_step(self) -> None:
        """The running step ends; its series can still be written."""

    def finish(self) -> None:
        """The session closes; notes can still be written."""

    def describe(self) -> dict[str, Any]:
        """What it found, as JSON for the dump's description."""
        return {}
