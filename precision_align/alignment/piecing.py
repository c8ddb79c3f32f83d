"""For each tensor of a run on several ranks how its pieces make up the whole that the reference has."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np

from precision_align.alignment.grids import find_grid, find_known
from precision_align.alignment.inference import choose_placements, choose_replicas, list_placements
from precision_align.alignment.joining import JoinedDump
from precision_align.alignment.layouts import (
    PARTIAL,
    UNEQUAL,
    Cells,
    Grid,
    Layouts,
    Placements,
    assemble,
    parse_dims,
)
from precision_align.alignment.recipes import Recipe, find_stride
from precision_align.alignment.rows import match_rows
from precision_align.alignment.side import Side
from precision_align.core.dtypes import Array, dtype_of, widen
from precision_align.core.errors import DumpDamaged
from precision_align.core.keys import Key
from precision_align.core.records import (
    COLLECTIVE_SCOPE,
    TensorRecord,
)
from precision_align.core.terms import Phase, Role, Source, Tier
from precision_align.numerics.statistics import summarize
from precision_align.storage.base import Dump
from precision_align.storage.hashing import digest_words

_LEFT_OUT = (Source.ATEN, Source.FUNCTION, Source.COLLECTIVE)
_SUMMING = ("all_reduce", "reduce_scatter", "reduce")

Name = tuple[Any, ...]


class Merger:
    """Finds a recipe for each tensor, in the order of the run: what the batch tells is needed for the gradients."""

    def __init__(self, dump: Dump, reference: Dump, layouts: Layouts) -> None:
        self._dump, self._reference, self._layouts = dump, reference, layouts
        self.lowest, self.rank = min(dump.ranks), min(reference.ranks)
        self._grid, self._is_joined = find_grid(dump, layouts), isinstance(dump, JoinedDump)
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
        self._rows: dict[Name, Array] = {}  # of a call whose tokens come in another order
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
        key = first.key
        grid = self._grid.select(held)
        if grid is None or (len(held) < self._grid.ranks.size and not self._is_joined):
            return self._lose(first, "not on all ranks")
        records: Cells = np.empty(grid.shape, dtype=object)
        for place in np.ndindex(*grid.shape):
            records[place] = held[int(grid.ranks[place])]
        known = self._find_known(records, first, grid)
        other = self._theirs.get(name)
        if other is None and known is None:
            equal = len({(record.digest, record.shape) for record in records.flat}) == 1
            if not equal:
                return self._lose(first, "without a partner in the reference, and not equal on all ranks")
            return self._take(records, ("Replicate",) * records.ndim, 1.0, "equal on all ranks")
        if key.role == Role.LOSS or _is_share(key):
            known = tuple(PARTIAL if axis in self._split else one for axis, one in enumerate(known or self._replicated))
        how = "as placed" if known is not None and known != self._replicated else "by content"
        recipe = self._choose(records, known, other, how)
        is_part = key.source == Source.MODULE and records.size < self._grid.ranks.size
        return self._order_rows(name, recipe, other) if is_part and recipe is not None else recipe

    def _order_rows(self, name: Name, recipe: Recipe, other: TensorRecord | None) -> Recipe:
        """Tokens that some of the ranks got from all of them may come in another order: the inputs tell."""
        first: TensorRecord = recipe.records.flat[0]
        key, call = first.key, name[:6]
        if key.role == Role.INPUT and other is not None and other.tier == first.tier == Tier.FULL:
            if first.digest == other.digest or len(other.shape) < 2:
                return recipe
            try:
                ours = widen(recipe.make_words(self._dump), dtype_of(first.dtype))
                rows = match_rows(ours, self._reference.values(other.key))
            except (KeyError, DumpDamaged):
                return recipe
            if rows is not None:
                self._rows[call] = rows
        rows = self._rows.get(call)
        is_own = key.path.partition(".")[0] == "parameter" or key.role not in (Role.INPUT, Role.OUTPUT, Role.GRADIENT)
        if rows is None or is_own or not first.shape or first.shape[0] != len(rows):
            return recipe
        self._counts["rows in another order, matched by their content"] += 1
        return replace(recipe, rows=rows)

    @property
    def _replicated(self) -> Placements:
        return ("Replicate",) * len(self._grid.shape)

    def _find_known(self, records: Cells, first: TensorRecord, grid: Grid) -> Placements | None:
        scope, role, path = self._names.get(first.key.scope) or "", str(first.key.role), first.key.path
        dims = self._layouts.find(scope, role, path)
        return parse_dims(dims, grid, len(first.shape)) if dims else find_known(records, grid)

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
        return Recipe(choose_replicas(records, placements, worst), placements, scale)

    def _read(self, record: TensorRecord) -> Array:
        return self._dump.values(record.key)

    def _take(self, records: Cells, placements: Placements, scale: float, how: str) -> Recipe:
        self._counts[how] += 1
        return Recipe(records, placements, scale)

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
