"""Points of scalar series, buffered until their step ends."""

from __future__ import annotations

import math
from collections import Counter
from typing import Union

import torch

from precision_align.recording.staging import untouched

Value = Union[float, torch.Tensor]


class Series:
    """What was logged in the running step: by the user (``given``) or by us; for one name the user's word counts."""

    def __init__(self) -> None:
        self._given: list[tuple[int, str, Value]] = []
        self._found: list[tuple[int, str, Value]] = []
        self._counts: Counter[str] = Counter()

    def add(self, name: str, micro: int, value: Value, *, given: bool) -> None:
        """One more point; a tensor is read only when the step ends."""
        (self._given if given else self._found).append((micro, name, value))

    def count(self, what: str) -> int:
        """How often this was asked before in the running step."""
        self._counts[what] += 1
        return self._counts[what] - 1

    def finish(self) -> list[tuple[int, str, float]]:
        """(micro, name, value) of the step, and start anew.

        A name that comes again in the same micro-batch gets a number: "loss", "loss.1".
        """
        mine = {name for _, name, _ in self._given}
        points = self._given + [point for point in self._found if point[1] not in mine]
        self._given, self._found = [], []
        self._counts.clear()
        times: Counter[tuple[int, str]] = Counter()
        numbered = []
        for micro, name, value in points:
            seen = times[micro, name]
            times[micro, name] += 1
            numbered.append((micro, f"{name}.{seen}" if seen else name, _read(value)))
        return numbered


def _read(value: Value) -> float:
    if not isinstance(value, torch.Tensor):
        return value
    if value.device.type == "meta":
        return math.nan
    with untouched():
        return float(value.item())
