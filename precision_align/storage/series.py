"""The file ``series.jsonl``: scalars that outlive a killed run, one JSON line each."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Callable

from precision_align.core.records import Point
from precision_align.storage import layout
from precision_align.storage.handles import create_file


class SeriesFile:
    """Appends points, each with one write of the operating system. Trouble goes to ``note``, never to the caller."""

    def __init__(self, folder: Path, note: Callable[[str], None]) -> None:
        self._note = note
        self._file = -1
        self._torn = False
        path = folder / layout.SERIES_FILE
        try:
            self._file = create_file(path, os.O_RDWR | os.O_APPEND)
            size = os.fstat(self._file).st_size
            if size and os.pread(self._file, 1, size - 1) != b"\n":  # the line that a killed run left half written
                os.write(self._file, b"\n")
        except OSError as error:
            self._note(f"{path.name} could not be opened: {error}")

    def append(self, point: Point) -> bool:
        """Write one point; whether that worked. After a failure (a full disk) the next one is tried on a new line."""
        if self._file < 0:
            return False
        line = (encode_point(point) + "\n").encode("ascii")
        line = b"\n" + line if self._torn else line
        try:
            self._torn = os.write(self._file, line) < len(line)
            reason = "the disk is full"
        except OSError as error:
            self._torn, reason = True, str(error.strerror)
        if self._torn:
            self._note(f"{layout.SERIES_FILE} lacks a value of step {point.step}: {reason}")
        return not self._torn

    def close(self) -> None:
        """Close the file."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


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
