"""What a sink could not do, kept short however often it happens."""

from __future__ import annotations

from collections.abc import Iterable
from threading import Lock

# A reader shows notes to a person; beyond this many different ones only their number is kept.
MAX_NOTES = 1000


class Notebook:
    """Notes in order, each text once; lost steps are joined into one note. Safe from several threads."""

    def __init__(self, notes: Iterable[str] = ()) -> None:
        self._lock = Lock()
        self._notes: dict[str, None] = dict.fromkeys(notes)
        self._more = 0
        self._lost: tuple[int, int, int, str] | None = None

    def add(self, text: str) -> None:
        """Remember a text."""
        with self._lock:
            if text in self._notes:
                return
            if len(self._notes) < MAX_NOTES:
                self._notes[text] = None
            else:
                self._more += 1

    def add_loss(self, first: int, last: int, rows: int, cause: str) -> None:
        """Remember that steps ``first`` to ``last`` could not be written at all."""
        with self._lock:
            before = self._lost or (first, last, 0, cause)
            self._lost = (min(before[0], first), max(before[1], last), before[2] + rows, before[3])

    @property
    def loss(self) -> str:
        """What :meth:`add_loss` was told, or nothing."""
        with self._lock:
            return self._describe_loss()

    def _describe_loss(self) -> str:
        if self._lost is None:
            return ""
        first, last, rows, cause = self._lost
        return f"{rows} records of steps {first} to {last} could not be written and are lost: {cause}"

    def texts(self) -> list[str]:
        """All notes."""
        with self._lock:
            texts = list(self._notes)
            if self._lost is not None:
                texts.append(self._describe_loss())
            if self._more:
                texts.append(f"{self._more} more notes were not kept")
            return texts
