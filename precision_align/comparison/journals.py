"""What a comparison has measured and replayed so far, kept in a file, so that one that was interrupted can go on.

One JSON line a result behind a first line with the identity of the comparison: what was compared, with what. Only what
is slow to get is kept (a pass over two payloads, a replay); all the rest is found again. The file appears after two
seconds of work and is removed at the end. A line that a killed process left half written is not used.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

# What is over sooner is not worth a file.
QUIET_SECONDS = 2.0
# A killed comparison loses so much work at most.
FLUSH_SECONDS = 1.0


class Journal:
    """Results by place, a tuple of texts and numbers. Without a path nothing is kept. A context manager.

    ``identity``: a file with another one is of another comparison, and overwritten.
    """

    def __init__(
        self, path: Path | None = None, identity: str = "", clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.path = path
        self._head = _make_head(identity)
        self._clock = clock
        self._due = clock() + QUIET_SECONDS
        self._waiting: list[str] = []
        self._known = {} if path is None else _read(path, self._head)
        self.num_known = len(self._known)
        self._is_new = not self._known

    @property
    def is_kept(self) -> bool:
        """Whether there is a file to go on from."""
        return self.path is not None and not self._is_new

    def recall(self, *place: Any) -> Any:
        """What was kept for a place, or None."""
        line = self._known.get(json.dumps(place)) if self._known else None
        if line is None:
            return None
        try:
            return json.loads(line)
        except ValueError:  # a line that was torn, and ended later
            return None

    def keep(self, value: Any, *place: Any) -> None:
        """Remember a JSON value for a place; floats come back bit for bit."""
        if self.path is None:
            return
        self._waiting.append(f"{json.dumps(place)}\t{json.dumps(value, default=_to_plain)}\n")
        if self._clock() >= self._due:
            self.flush()

    def flush(self) -> None:
        """Write what waits. A full disk, or a folder that is gone, ends the keeping and nothing else."""
        if self.path is None or not self._waiting:
            return
        lines, self._waiting = "".join(self._waiting), []
        self._due = self._clock() + FLUSH_SECONDS
        try:
            with self.path.open("w" if self._is_new else "a", encoding="ascii") as file:
                file.write(f"{self._head if self._is_new else ''}\n{lines}")  # a torn line ends here
            self._is_new = False
        except OSError:
            self.path = None

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        if kind is not None:
            self.flush()

    def finish(self, target: Path) -> None:
        """Turn the file into ``target``: whole, in one order, the same bytes whenever the same was found.

        Raises OSError where it cannot be written.
        """
        self.flush()
        lines = [] if self.path is None or self._is_new else sorted(_read(self.path, self._head).items())
        text = "".join(f"{place}\t{value}\n" for place, value in lines)
        draft = target.with_name(f"{target.name}.tmp")
        draft.write_text(f"{self._head}\n{text}", encoding="ascii")
        draft.replace(target)
        self.remove()

    def absorb(self, path: Path, identity: str) -> None:
        """Know what another journal found, whose identity must be this. Raises OSError and ValueError."""
        first, *lines = path.read_text(encoding="ascii").split("\n")
        if first != _make_head(identity):
            raise ValueError(f"{path} is of another comparison")
        self._known.update(_split(lines))
        self.num_known = len(self._known)

    def remove(self) -> None:
        """The comparison is finished, and its report is safe."""
        self._waiting = []
        if self.path is not None:
            with suppress(OSError):
                self.path.unlink()


def _make_head(identity: str) -> str:
    return json.dumps({"comparison": identity})


def _read(path: Path, head: str) -> dict[str, str]:
    try:
        first, *lines = path.read_text(encoding="ascii").split("\n")
    except (OSError, ValueError):
        return {}
    if first != head:
        return {}
    return _split(lines)


def _split(lines: Sequence[str]) -> dict[str, str]:
    known = {}
    # without a line end behind it the last line is only a part of one
    for line in lines[:-1]:
        place, tab, value = line.partition("\t")
        if tab:
            known[place] = value
    return known


def _to_plain(value: Any) -> Any:
    """NumPy's scalars."""
    return value.item()
