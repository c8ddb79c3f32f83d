"""A run on several ranks as one of a single device: each tensor whole, so that a 1-device reference can be compared.

How a tensor lies on the ranks comes from its placements (DTensor), else from a layout file, else from the reference's
tensor. Gradients of ranks that had parts of the batch are added up, times what makes their losses one mean. Replicas
that are not equal are not averaged: the one that is furthest from the reference stands for all, and the report names
its rank.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np

from precision_align.alignment.grids import find_grid, find_known
from precision_align.alignment.inference import choose_placements, choose_replicas, list_placements
from precision_align.alignment.layouts import (
    PARTIAL,
    UNEQUAL,
    Cells,
    Layouts,
    Placements,
    assemble,
    parse_dims,
)
from precision_align.alignment.recipes import Recipe, find_stride
from precision_align.alignment.side import Side
from precision_align.core.dtypes import Array, dtype_of
from precision_align.core.errors import DumpDamaged
from precision_align.core.keys import Key
from precision_align.core.records import (
    COLLECTIVE_SCOPE,
    OPTIMIZER_SCOPE,
    OTHER_SCOPES,
    Call,
    Point,
    RunInfo,
    TensorRecord,
)
from precision_align.core.terms import Phase, Role, Source, Tier
from precision_align.numerics.statistics import summarize
from precision_align.storage.base import Dump
from precision_align.storage.hashing import digest_words
from precision_align.storage.views import DumpView

_LEFT_OUT = (Source.ATEN, Source.FUNCTION, Source.COLLECTIVE)
_SUMMING = ("all_reduce", "reduce_scatter", "reduce")
_KEPT = 16  # merged tensors that are kept: a call's inputs are read again for its gradients

Name = tuple[Any, ...]


class MergedDump(DumpView):
    """All ranks of a dump as one; implements :class:`~precision_align.storage.base.Dump`.

    ``reference``: the run whose tensors tell how those without a placement lie; its lowest rank is taken.
    """

    def __init__(self, dump: Dump, reference: Dump, layouts: Layouts | None = None) -> None:
        self._dump = dump
        self.source, self.path = dump, getattr(dump, "path", "")
        self.source_ranks = list(dump.ranks)
        merger = _Merger(dump, reference, layouts or Layouts())
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
    def records(self) -> Sequence[TensorRecord]:
        """The whole tensors, in the lowest rank's order."""
        return self._records

    @property
    def calls(self) -> Sequence[Call]:
        """The lowest rank's calls of modules and optimizers."""
        return self._calls

    @property
    def series(self) -> Sequence[Point]:
        """The loss over all ranks; other series are of single ranks and are left out."""
        return self._series

    @property
    def notes(self) -> Sequence[str]:
        """What the dump lacks, and what could not be merged."""
        return self._notes

    @property
    def gaps(self) -> Sequence[str]:
        """Those of the ranks."""
        return self._dump.gaps

    @property
    def steps(self) -> Sequence[int]:
        """Those of the ranks."""
        return self._dump.steps

    @property
    def ranks(self) -> Sequence[int]:
        """One."""
        return [self._rank]

    def position(self, text: str) -> int:
        """The position in ``records`` of a key in its text form. Raises KeyError."""
        return self._positions[text]

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

    def close(self) -> None:
        """Close the ranks' files."""
        self._dump.close()

    def is_worst(self, text: str) -> bool:
        """Whether a record stands for replicas that differ. Raises KeyError."""
        return UNEQUAL in self._recipes[self.position(text)].placements

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


class _Merger:
    """Finds a recipe for each tensor, in the order of the run: what the batch tells is needed for the gradients."""

    def __init__(self, dump: Dump, reference: Dump, layouts: Layouts) -> None:
        self._dump, self._reference, self._layouts = dump, reference, layouts
        self.lowest, self.rank = min(dump.ranks), min(reference.ranks)
        self._grid = find_grid(dump, layouts)
        self._names = Side(dump).names
        theirs = Side(reference).names
        self._theirs = {
            name: record
            for record in reference.records
            if record.key.rank == self.rank and (name := _identify(record.key, theirs)) is not None
        }
        self._summed = _find_summed(dump)
        self._split: set[int] = set()  # dimensions of the grid along which the batch is cut
        self._scales: dict[int, float] = {}  # step -> factor of gradients
        self._counts: Counter[str] = Counter()
        self._lost: dict[str, list[str]] = defaultdict(list)

    def merge(self) -> tuple[list[TensorRecord], list[Recipe]]:
        """The whole tensors and how each is made, in the lowest rank's order."""
        groups: dict[Name, dict[int, TensorRecord]] = defaultdict(dict)
        for record in self._dump.records:
            if record.key.source not in _LEFT_OUT:
                name = _identify(record.key, self._names)
                if name is not None:
                    groups[name][record.key.rank] = record
        ordered = sorted(groups.items(), key=lambda item: _order(item[1][min(item[1])]))
        found = [(held, self._find_recipe(name, held)) for name, held in ordered]
        kept = [(self._make_record(held[min(held)], recipe), recipe) for held, recipe in found if recipe is not None]
        return [record for record, _ in kept], [recipe for _, recipe in kept]

    def _find_recipe(self, name: Name, held: dict[int, TensorRecord]) -> Recipe | None:
        first = held[min(held)]
        if set(held) != set(map(int, self._grid.ranks.flat)):
            return self._lose(first, "not on all ranks")
        records: Cells = np.empty(self._grid.shape, dtype=object)
        for place in np.ndindex(*self._grid.shape):
            records[place] = held[int(self._grid.ranks[place])]
        known = self._find_known(records, first)
        other = self._theirs.get(name)
        if other is None and known is None:
            equal = len({(record.digest, record.shape) for record in records.flat}) == 1
            if not equal:
                return self._lose(first, "without a partner in the reference, and not equal on all ranks")
            return self._take(records, ("Replicate",) * records.ndim, 1.0, "equal on all ranks")
        if first.key.role == Role.LOSS or _is_share(first.key):
            known = tuple(PARTIAL if axis in self._split else one for axis, one in enumerate(known or self._replicated))
        how = "as placed" if known is not None and known != self._replicated else "by content"
        return self._choose(records, known, other, how)

    @property
    def _replicated(self) -> Placements:
        return ("Replicate",) * len(self._grid.shape)

    def _find_known(self, records: Cells, first: TensorRecord) -> Placements | None:
        scope, role, path = self._names.get(first.key.scope) or "", str(first.key.role), first.key.path
        dims = self._layouts.find(scope, role, path)
        return parse_dims(dims, self._grid, len(first.shape)) if dims else find_known(records, self._grid)

    def _choose(self, records: Cells, known: Placements | None, other: TensorRecord | None, how: str) -> Recipe | None:
        first: TensorRecord = records.flat[0]
        if other is None:
            return self._take(records, known or self._replicated, 1.0, how)
        partial = self._may_be_partial(records)
        options = list_placements(records, other.shape, partial, known)
        if not options:
            return self._lose(first, "whose pieces do not make up the reference's shape")
        scales = self._list_scales(first)
        if len(options) == 1 and len(scales) == 1 and UNEQUAL not in options[0]:
            return self._finish_choice(records, options[0], scales[0], how)
        if any(record.tier != Tier.FULL for record in [*records.flat, other]):
            return self._lose(first, "whose values are not recorded: how they lie cannot be told")
        try:
            target = self._reference.values(other.key).astype(np.float64)
            placements, scale = choose_placements(records, options, target, self._read, scales)
            if UNEQUAL in placements:
                return self._take_worst(records, placements, target, scale)
        except (KeyError, DumpDamaged):
            return self._lose(first, "whose values cannot be read")
        return self._finish_choice(records, placements, scale, how)

    def _finish_choice(self, records: Cells, placements: Placements, scale: float, how: str) -> Recipe:
        key: Key = records.flat[0].key
        if key.source == Source.MODULE and key.phase == Phase.BACKWARD:
            self._scales.setdefault(key.step, scale)
        if key.source == Source.MODULE and key.role == Role.INPUT and not self._scales:
            self._split |= {axis for axis, one in enumerate(placements) if "Shard" in one and self._is_root(key)}
        return self._take(records, placements, scale, how)

    def _is_root(self, key: Key) -> bool:
        return self._names.get(key.scope) == "" or not key.scope

    def _may_be_partial(self, records: Cells) -> list[bool]:
        """Shares of a parameter's gradient may be parts of a sum; others where a recorded collective sums them up."""
        summed = _is_share(records.flat[0].key) or all(record.digest in self._summed for record in records.flat)
        return [summed] * records.ndim

    def _list_scales(self, first: TensorRecord) -> list[float]:
        """Factors that are thinkable: losses that are means of parts of a batch make gradients too large by their
        number; those that are divided by the whole batch do not."""
        key = first.key
        count = int(np.prod([self._grid.shape[axis] for axis in self._split])) if self._split else 1
        if key.role == Role.LOSS:
            return [1.0, 1.0 / count] if count > 1 else [1.0]
        if count == 1 or key.source != Source.MODULE or key.phase != Phase.BACKWARD:
            return [1.0]
        return [self._scales[key.step]] if key.step in self._scales else [1.0, 1.0 / count]

    def _take_worst(self, records: Cells, placements: Placements, target: Array, scale: float) -> Recipe:
        """Of replicas that differ the one that is furthest from the reference."""
        pieces = np.empty(records.shape, dtype=object)
        for place in np.ndindex(*records.shape):
            pieces[place] = self._read(records[place]).astype(np.float64)
        unequal = [axis for axis, one in enumerate(placements) if one == UNEQUAL]
        choices = list(product(*(range(records.shape[axis]) for axis in unequal)))
        errors = [
            float(np.linalg.norm(assemble(choose_replicas(pieces, placements, choice), placements) * scale - target))
            for choice in choices
        ]
        worst = choices[max(range(len(choices)), key=lambda one: np.nan_to_num(errors[one], nan=np.inf))]
        self._counts["replicas that differ: the one furthest from the reference stands for all"] += 1
        ranks = choose_replicas(self._grid.ranks, placements, worst)
        return Recipe(choose_replicas(records, placements, worst), ranks, placements, scale)

    def _read(self, record: TensorRecord) -> Array:
        return self._dump.values(record.key)

    def _take(self, records: Cells, placements: Placements, scale: float, how: str) -> Recipe:
        self._counts[how] += 1
        return Recipe(records, self._grid.ranks, placements, scale)

    def _lose(self, record: TensorRecord, why: str) -> Recipe | None:
        self._lost[why].append(str(record.key))
        return None

    def _make_record(self, first: TensorRecord, recipe: Recipe) -> TensorRecord:
        key = replace(first.key, rank=self.rank)
        extra = {name: value for name, value in first.extra.items() if name != "shard"}
        if recipe.original is not None:
            return replace(recipe.original, key=key, order=first.order, extra=extra)
        try:
            words = recipe.make_words(self._dump)
        except (KeyError, DumpDamaged) as error:
            reason = f"its pieces on the ranks could not be put together: {error}"
            return replace(
                first, key=key, tier=Tier.FINGERPRINT, digest=b"", statistics=None, reason=reason, extra=extra
            )
        row = dtype_of(first.dtype)
        return replace(
            first,
            key=key,
            shape=tuple(words.shape),
            stride=find_stride(words.shape),
            tier=Tier.FULL,
            digest=digest_words(words),
            statistics=summarize(words, row),
            nbytes=words.nbytes,
            extra=extra,
        )

    def describe(self) -> list[str]:
        """What was merged and how, and what was not, as notes."""
        ranks = ", ".join(map(str, self._dump.ranks))
        how = "; ".join(f"{count} {text}" for text, count in self._counts.most_common())
        notes = [f"tensors of ranks {ranks} were merged into whole ones for a reference of one device: {how or 'none'}"]
        for why, keys in self._lost.items():
            notes.append(
                f"{len(keys)} tensors were not merged, {why}: first {keys[0]}; a layout file may say how they lie"
            )
        return notes


def _identify(key: Key, names: dict[str, str | None]) -> Name | None:
    """A record's key without its rank, by aligned names; None for the shells of wrappers."""
    scope = names.get(key.scope, key.scope)
    if scope is None:
        return None
    return (
        key.step,
        key.micro,
        key.source,
        scope,
        key.call,
        key.pass_,
        key.op,
        key.ordinal,
        key.phase,
        key.role,
        key.path,
    )


def _order(record: TensorRecord) -> tuple[int, int]:
    return record.key.step, record.order


def _is_share(key: Key) -> bool:
    return key.source == Source.MODULE and key.phase == Phase.BACKWARD and key.path.startswith("parameter.")


def _find_summed(dump: Dump) -> set[bytes]:
    """Hashes of what went into a collective that sums."""
    calls = {
        (call.rank, call.step, call.identity)
        for call in dump.calls
        if call.scope.startswith(COLLECTIVE_SCOPE) and call.kind in _SUMMING
    }
    return {
        record.digest
        for record in dump.records
        if record.key.source == Source.COLLECTIVE
        and record.key.role == Role.INPUT
        and (record.key.rank, record.key.step, record.extra["collective"]) in calls
    }
