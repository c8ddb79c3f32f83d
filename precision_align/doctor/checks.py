"""The result of looking at one thing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Callable

GOOD, NOTE, BAD, ABSENT = "ok", "note", "bad", "absent"


@dataclass(frozen=True)
class Check:
    """One thing looked at: ``status`` is ok, note, bad or absent; ``advice`` what to do, "" where nothing."""

    name: str
    status: str
    text: str
    advice: str = ""


def is_healthy(checks: Sequence[Check]) -> bool:
    """Nothing is broken."""
    return all(check.status != BAD for check in checks)


def attempt(name: str, examine: Callable[[], list[Check]], advice: str) -> list[Check]:
    """The checks of ``examine``, or one bad check where it raises: what is broken is what we are here to find."""
    try:
        return examine()
    except Exception as error:
        return [Check(name, BAD, first_line(error), advice)]


def first_line(error: BaseException) -> str:
    """Class and first line of an error."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else 'no message'}"
