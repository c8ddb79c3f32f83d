"""A ring buffer on disk: the files of the last steps stay, older ones go."""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import Optional

from precision_align.storage import layout


class Ring:
    """Keeps the files of the last ``keep`` recorded steps of a rank folder (None: of all of them).

    A file that covers several steps counts as its last one. Files that are already there take part.
    """

    def __init__(self, folder: Path, keep: Optional[int]) -> None:
        self._keep = keep
        self._steps: deque[tuple[int, list[Path]]] = deque()
        if keep is not None:
            found = ((_last_step(path), path) for path in folder.iterdir() if layout.PART_FILE.fullmatch(path.name))
            for _, path in sorted(found):
                self.add(path)

    def add(self, path: Path) -> None:
        """A finished file; removes those that are no longer wanted. Raises nothing."""
        if self._keep is None:
            return
        step = _last_step(path)
        if self._steps and self._steps[-1][0] == step:
            self._steps[-1][1].append(path)
        else:
            self._steps.append((step, [path]))
        while len(self._steps) > self._keep:
            for old in self._steps.popleft()[1]:
                with suppress(OSError):  # somebody else's removal, or a busy network file system
                    old.unlink()


def _last_step(path: Path) -> int:
    found = layout.PART_FILE.fullmatch(path.name)
    return int(found[2]) if found else 0
