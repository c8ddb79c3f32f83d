"""The file ``series.jsonl``: scalars that outlive a killed run, one JSON line each.

It does not grow for ever: beyond ``SERIES_BYTES`` its older half keeps every second step, in the end every fourth and
so on. Which steps stay depends on their numbers alone, so that two runs keep the same ones.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Callable

from precision_align.core.records import Point
from precision_align.storage import layout
from precision_align.storage.handles import create_file

# A loss and the facts of its batch take 150 bytes: full resolution for the first 110,000 steps.
SERIES_BYTES = 16 << 20
# Thinned so far, so that the next time is not at once.
_THINNED_SHARE = 0.75
_STEP = re.compile(rb'\{"step": (-?\d+),')


class SeriesFile:
    """Appends points, each with one write of the operating system. Trouble goes to ``note``, never to the caller."""

    def __init__(self, folder: Path, note: Callable[[str], None]) -> None:
        self._note = note
        self._file, self._size, self._limit = -1, 0, SERIES_BYTES
        self._torn = False
        self._path = folder / layout.SERIES_FILE
        self._open()

    def _open(self) -> None:
        try:
            self._file = create_file(self._path, os.O_RDWR | os.O_APPEND)
            self._size = os.fstat(self._file).st_size
            # the line that a killed run left half written
            if self._size and os.pread(self._file, 1, self._size - 1) != b"\n":
                self._size += os.write(self._file, b"\n")
        except OSError as error:
            self._note(f"{self._path.name} could not be opened: {error}")

    def append(self, point: Point) -> bool:
        """Write one point; whether that worked. After a failure (a full disk) the next one is tried on a new line."""
        if self._file < 0:
            return False
        line = (encode_point(point) + "\n").encode("ascii")
        line = b"\n" + line if self._torn else line
        try:
            written = os.write(self._file, line)
            self._size += written
            self._torn = written < len(line)
            reason = "the disk is full"
        except OSError as error:
            self._torn, reason = True, str(error.strerror)
        if self._torn:
            self._note(f"{layout.SERIES_FILE} lacks a value of step {point.step}: {reason}")
        elif self._size > self._limit:
            self._shrink()
        return not self._torn

    def _shrink(self) -> None:
        """Put a thinned file in the place of this one; a killed run finds either."""
        temporary = self._path.with_name(self._path.name + layout.UNFINISHED)
        try:
            lines, middle, stride = thin_lines(self._path.read_bytes(), int(self._limit * _THINNED_SHARE))
            temporary.unlink(missing_ok=True)
            os.close(create_file(temporary))
            temporary.write_bytes(b"".join(lines))
            temporary.replace(self._path)
        except OSError as error:  # a full disk: let it grow, and try again later
            self._note(f"{layout.SERIES_FILE} could not be thinned: {error.strerror}")
            self._limit *= 2
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
            return
        self._note(f"{layout.SERIES_FILE} was thinned: of the steps before {middle} every {stride}th stands in it")
        os.close(self._file)
        self._open()
        if self._size > self._limit * _THINNED_SHARE:  # few steps of very many points each
            self._limit *= 2

    def close(self) -> None:
        """Close the file."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def thin_lines(data: bytes, size: int) -> tuple[list[bytes], int, int]:
    """The lines of a series file that stay in so many bytes, and M and S: of the steps before M those of every S-th.

    Lines that are no points go. The newer half of the steps stays whatever it takes.
    """
    found = [(int(match[1]), line + b"\n") for line in data.split(b"\n") if (match := _STEP.match(line)) is not None]
    steps = sorted({step for step, _ in found})
    middle = steps[len(steps) // 2] if steps else 0
    for stride in (1 << power for power in range(64)):
        kept = [line for step, line in found if step >= middle or step % stride == 0]
        if sum(map(len, kept)) <= size:
            break
    return kept, middle, stride


def encode_point(point: Point) -> str:
    """One line of strict JSON; NaN and infinities are texts."""
    value = float(point.value)
    shown = value if value - value == 0.0 else str(value)
    return json.dumps({"step": point.step, "micro": point.micro, "name": point.name, "value": shown}, allow_nan=False)


def read_series(folder: Path) -> tuple[list[Point], list[str]]:
    """The points of a rank folder in the order they were written, and notes on lines that cannot be read."""
    path = folder / layout.SERIES_FILE
    try:
        lines = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return [], []
    except OSError as error:
        return [], [f"{path} cannot be read: {error.strerror}"]
    points, broken = [], 0
    for line in lines:
        try:
            points += [decode_point(line)] if line.strip() else []
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
            broken += 1
    return points, [f"{path} has {broken} unreadable lines"] if broken else []


def decode_point(line: bytes) -> Point:
    """The inverse of :func:`encode_point`. Raises ValueError, KeyError, TypeError, OverflowError, RecursionError."""
    content = json.loads(line)
    return Point(int(content["step"]), int(content["micro"]), str(content["name"]), float(content["value"]))


def merge_points(sources: Iterable[Iterable[Point]]) -> list[Point]:
    """One value for each step, micro-batch and name, the last one given; ordered by step, micro-batch, appearance."""
    merged: dict[tuple[int, int, str], Point] = {}
    for points in sources:
        for point in points:
            merged[point.step, point.micro, point.name] = point
    return sorted(merged.values(), key=lambda point: (point.step, point.micro))
