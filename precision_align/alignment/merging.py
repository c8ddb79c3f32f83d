"""A run on several ranks as one of a single device: each tensor whole, so that a 1-device reference can be compared.

How a tensor lies on the ranks comes from its placements (DTensor), else from a layout file, else from the reference's
tensor. Gradients of ranks that had parts of the batch are added up, times what makes their losses one mean. Replicas
that are not equal are not averaged: the one that is furthest from the reference stands for all, and the report names
its rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from precision_align.alignment.joining import join_ranks
from precision_align.alignment.layouts import UNEQUAL, Layouts
from precision_align.alignment.piecing import Merger
from precision_align.core.dtypes import Array
from precision_align.core.records import (
    OPTIMIZER_SCOPE,
    OTHER_SCOPES,
    Call,
    Point,
    RunInfo,
)
from precision_align.core.terms import Role, Tier
from precision_align.storage.base import Dump
from precision_align.storage.views import ChangedDump

_KEPT = 16  # merged tensors that are kept: a call's inputs are read again for its gradients


class MergedDump(ChangedDump):
    """All ranks of a dump as one; implements :class:`~precision_align.storage.base.Dump`.

    ``reference``: the run whose tensors tell how those without a placement lie; its lowest rank is taken.
    """

    def __init__(self, dump: Dump, reference: Dump, layouts: Layouts | None = None) -> None:
        layouts = layouts or Layouts()
        super().__init__(join_ranks(dump, reference, layouts))
        self.source = dump
        self.source_ranks = list(dump.ranks)
        dump = self._dump
        merger = Merger(dump, reference, layouts)
        self._rank = merger.rank
        self._records, self._recipes = merger.merge()
        self._positions = {str(record.key): position for position, record in enumerate(self._records)}
        self._kept: dict[int, Array] = {}
        calls = [call for call in dump.calls if call.rank == merger.lowest]
        self._calls = [replace(call, rank=self._rank) for call in calls if _is_kept(call)]
        self._series = self._merge_losses()
        self._notes = [*dump.notes, *merger.describe()]

    @property
    def info(self) -> RunInfo:
        """Of the lowest rank, as of a world of one."""
        return replace(self._dump.info, rank=self._rank, world=1, notes=tuple(self._notes))

    @property
    def infos(self) -> Sequence[RunInfo]:
        """The same, as the only one's."""
        return [self.info]

    @property
    def series(self) -> Sequence[Point]:
        """The loss over all ranks; other series are of single ranks and are left out."""
        return self._series

    @property
    def notes(self) -> Sequence[str]:
        """What the dump lacks, and what could not be merged."""
        return self._notes

    @property
    def ranks(self) -> Sequence[int]:
        """One."""
        return [self._rank]

    def stored_words(self, position: int) -> Array | None:
        """The payload at a position, or None where a piece has none."""
        if position not in self._kept:
            try:
                words = self._recipes[position].make_words(self._dump)
            except KeyError:
                return None
            if len(self._kept) >= _KEPT:
                del self._kept[next(iter(self._kept))]
            self._kept[position] = words
        return self._kept[position].copy()

    def stored_sketch(self, position: int) -> Array | None:
        """The stored sketch at a position, of tensors that are whole on a rank."""
        original = self._recipes[position].original
        return None if original is None else self._dump.sketch(original.key)

    def stored_sample(self, position: int) -> Array | None:
        """The stored sample at a position, of tensors that are whole on a rank."""
        original = self._recipes[position].original
        return None if original is None else self._dump.sample(original.key)

    def is_worst(self, text: str) -> bool:
        """Whether a record stands for replicas that differ. Raises KeyError."""
        return UNEQUAL in self._recipes[self.position(text)].placements

    def is_held_by_one(self, text: str) -> bool:
        """Whether no other rank has anything of a record. Raises KeyError."""
        return self._recipes[self.position(text)].records.size == 1 and not self.is_worst(text)

    def find_owners(self, text: str) -> Array:
        """For each element of a record the rank that it comes from, -1 where it is a sum. Raises KeyError."""
        return self._recipes[self.position(text)].name_owners()

    def _merge_losses(self) -> list[Point]:
        points = []
        for record in self._records:
            if record.key.role == Role.LOSS and record.shape == () and record.key.path == "loss":
                value = float(self.values(record.key)) if record.tier == Tier.FULL else float("nan")
                points.append(Point(record.key.step, record.key.micro, "loss", value))
        return points


def _is_kept(call: Call) -> bool:
    return call.scope.startswith(OPTIMIZER_SCOPE) or not call.scope.startswith(OTHER_SCOPES)
