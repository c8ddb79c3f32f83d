"""What could not be done as asked, by reason, for the notes of a dump."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

_SHOWN = 5


class Shortfalls:
    """Collects (reason, what); each reason becomes one line, however often it came."""

    def __init__(self) -> None:
        self._found: dict[str, Counter[str]] = defaultdict(Counter)

    def add(self, reason: str, what: str) -> None:
        """One more."""
        self._found[reason][what] += 1

    def texts(self) -> Iterator[str]:
        """ "REASON: COUNT (the first of them)", in the order in which the reasons came."""
        for reason, places in self._found.items():
            shown = ", ".join(list(places)[:_SHOWN]) + (", ..." if len(places) > _SHOWN else "")
            yield f"{reason}: {sum(places.values())} ({shown})"
