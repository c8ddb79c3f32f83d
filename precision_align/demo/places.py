"""Where the demo may write: never over what it did not write itself (no torch)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from precision_align.core.errors import UsageError

FILES = ("start.pt", "reference", "candidate", "repaired")


def prepare_folder(folder: Path) -> None:
    """Make the folder for dumps, or take an earlier demo's. Raises UsageError where it holds other things."""
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is a file; the demo records its runs in a folder of that name: give another --out")
    foreign = sorted(path.name for path in folder.iterdir() if path.name not in FILES) if folder.is_dir() else []
    if foreign:
        raise UsageError(f"{folder} holds {', '.join(foreign[:3])}, which no demo wrote: give another --out")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{folder} cannot be made: {error.strerror or error}") from error


def check_reports(paths: Sequence[Path]) -> None:
    """Raises UsageError where one of the paths is a file that this package did not write."""
    marks = (b'"precision-align report"', b'name="generator" content="precision-align')
    for path in paths:
        if path.is_dir():
            raise UsageError(f"{path} is a folder; the demo writes a file of that name: give another --out")
        if path.exists() and not any(mark in path.read_bytes()[:4096] for mark in marks):
            raise UsageError(f"{path} is no report of precision-align and is left alone: give another --out")
