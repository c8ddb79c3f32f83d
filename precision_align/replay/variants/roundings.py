"""Some of the code in a lower dtype: a cast too early or too late. Found as a run of consecutive operations."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, Callable, Optional

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from precision_align.core.dtypes import Array
from precision_align.replay.noise import ROUNDING
from precision_align.replay.variants.operations import Operation, find_line, is_floating

LOWER = {"bfloat16": torch.bfloat16, "float16": torch.float16}
# All runs of so many operations are tried; of more, each alone, all together and runs that start with the first.
MOST_RUNS, MOST_SINGLE = 8, 40

Replay = Callable[[Any], Optional[Array]]


class LoweringMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While active, operations number ``first`` to ``last`` of those that round compute in a lower dtype: operands and
    result rounded. ``places``: how a text names each."""

    def __init__(self, dtype: torch.dtype, first: int, last: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._dtype, self._first, self._last = dtype, first, last
        self.places: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        operation = Operation(func, tuple(args), dict(kwargs or {}))
        if operation.name not in ROUNDING or func._schema.is_mutable or not any(map(is_floating, args)):
            return operation.run()
        number = len(self.places)
        self.places.append(Operation(func, (), {}, find_line()).place)
        if not self._first <= number <= self._last:
            return operation.run()
        rounded = [round_through(value, self._dtype) for value in args]
        return round_through(func(*rounded, **operation.kwargs), self._dtype)


def round_through(value: Any, dtype: torch.dtype) -> Any:
    """Floating tensors rounded to a dtype and back; in lists, too."""
    if isinstance(value, (list, tuple)):
        return type(value)(round_through(item, dtype) for item in value)
    return value.to(dtype).to(value.dtype) if is_floating(value) else value


def list_lowerings(replay: Replay) -> Iterator[tuple[str, Callable[[], LoweringMode]]]:
    """(text, how to make the mode) of runs of operations in a lower dtype."""
    counting = LoweringMode(torch.bfloat16, 0, -1)
    replay(counting)
    for name, dtype in LOWER.items():
        for first, last in _list_runs(len(counting.places)):
            start, end = counting.places[first], counting.places[last]
            text = f"computed in {name} inside: {start}{f' to {end}' if last > first else ''}"
            yield text, partial(LoweringMode, dtype, first, last)


def _list_runs(count: int) -> list[tuple[int, int]]:
    if count <= MOST_RUNS:
        return [(first, last) for first in range(count) for last in range(first, count)]
    singles = [(number, number) for number in range(min(count, MOST_SINGLE))]
    return [*singles, (0, count - 1), *((first, first + 1) for first in range(min(count, MOST_SINGLE) - 1))]
