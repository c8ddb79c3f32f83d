"""What a session is asked to begin from, and to write of its beginning."""

from __future__ import annotations

import hashlib
from contextlib import ExitStack
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, Optional, Union

from precision_align.core.errors import UsageError
from precision_align.core.records import RunInfo
from precision_align.recording.startpacks import ALL, Allowance, StartPack, StartWriter
from precision_align.recording.tape import Clock
from precision_align.storage.settings import Settings

AnyPath = Union[str, PathLike[str], None]
_BLOCK = 1 << 20


@dataclass(frozen=True)
class Start:
    """What a session begins from, and what it writes of its own beginning."""

    pack: Optional[StartPack] = None
    writer: Optional[StartWriter] = None


@dataclass(frozen=True)
class Beginning:
    """Where to write a start pack, where to begin from, and the file that holds the weights; None for neither.

    Relative paths are made absolute at once: the run may change its working directory.
    """

    save: Optional[Path] = None
    source: Optional[Path] = None
    checkpoint: Optional[Path] = None
    allowance: Allowance = ALL

    @classmethod
    def at(cls, save: AnyPath, source: AnyPath, checkpoint: AnyPath) -> Beginning:
        """From paths as the user gives them. Raises UsageError where they do not go together."""
        if checkpoint is not None and save is None:
            raise UsageError(
                "checkpoint names the file that stands for the weights in a start pack: give save_start too"
            )
        places = [None if path is None else Path(path).absolute() for path in (save, source, checkpoint)]
        if places[2] is not None and not places[2].is_file():
            raise UsageError(f"there is no checkpoint {checkpoint}: name the file that the script loads")
        return cls(places[0], places[1], places[2])

    @property
    def is_asked_for(self) -> bool:
        """Whether there is anything to do."""
        return self.save is not None or self.source is not None

    def open(self, rank: int, opened: ExitStack) -> Optional[StartPack]:
        """The pack to begin from; ``opened`` closes it. Raises DumpError, UsageError."""
        if self.source is None:
            return None
        pack = StartPack(self.source, rank)
        opened.callback(pack.dump.close)
        return pack

    def make(
        self, pack: Optional[StartPack], info: RunInfo, clock: Clock, settings: Settings, overwrite: bool
    ) -> Optional[Start]:
        """What a session is to do, None for nothing. Raises UsageError where the folder of the new pack is taken."""
        if not self.is_asked_for:
            return None
        writer = None
        if self.save is not None:
            checkpoint = None if self.checkpoint is None else describe_file(self.checkpoint)
            writer = StartWriter(
                self.save, info, clock, settings, self.allowance, overwrite=overwrite, checkpoint=checkpoint
            )
        return Start(pack, writer)


NO_BEGINNING = Beginning()


def describe_file(path: Path) -> dict[str, Any]:
    """Name, size and SHA-256 of a file. Raises OSError."""
    hasher = hashlib.sha256()
    with path.open("rb") as file:
        for block in iter(lambda: file.read(_BLOCK), b""):
            hasher.update(block)
    return {"file": path.name, "bytes": path.stat().st_size, "sha256": hasher.hexdigest()}
