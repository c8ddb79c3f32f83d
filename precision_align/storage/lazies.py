"""Records that are built when they are asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, overload

from precision_align.core.records import TensorRecord


class LazyRecords(Sequence[TensorRecord]):
    """``build`` makes the record of a position; built ones are kept, about 1.5 KB each, until there are ``limit``."""

    def __init__(self, count: int, build: Callable[[int], TensorRecord], limit: int | None = None) -> None:
        self._count, self._build, self._limit = count, build, limit
        self._built: dict[int, TensorRecord] = {}

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, position: int) -> TensorRecord: ...
    @overload
    def __getitem__(self, position: slice) -> list[TensorRecord]: ...
    def __getitem__(self, position: Any) -> Any:
        built = self._built.get(position) if type(position) is int else None
        if built is not None:
            return built
        if isinstance(position, slice):
            return [self[number] for number in range(*position.indices(self._count))]
        number = range(self._count)[position]
        found = self._built.get(number)
        if found is None:
            if len(self._built) == self._limit:
                self._built.clear()
            found = self._built[number] = self._build(number)
        return found

    def __iter__(self) -> Iterator[TensorRecord]:
        built = self._built.get
        for position in range(self._count):
            yield built(position) or self[position]
