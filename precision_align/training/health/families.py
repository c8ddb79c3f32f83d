"""Ranks that hold different tensors under one name: stages of a pipeline, experts of one name. They are no replicas.

Told from the parameters at the first step: those of replicas are equal, or nearly so; those of two modules have nothing
to do with each other. As a training whose ranks were initialised with unequal seeds looks the same, this is believed of
whole ranks only where their parameters' names differ, too, and of parts of a model only where tokens go all to all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from precision_align.core.errors import DumpDamaged
from precision_align.core.records import TensorRecord
from precision_align.training.health.facts import Facts
from precision_align.training.health.groups import Groups, is_shard

# Relative L2 distance: independent tensors are 1.4 apart where their means are 0; replicas that drift, below 0.1.
_UNRELATED = 0.5

Held = Mapping[int, TensorRecord]  # by rank


class Families:
    """``split`` parts ranks into those that hold the same."""

    def __init__(self, facts: Facts, groups: Groups) -> None:
        self._facts = facts
        self._start = {name: _take_first(records) for name, records in facts.before.items()}
        ranks = list(facts.dump.ranks)
        names = {rank: frozenset(name for name, held in self._start.items() if rank in held) for rank in ranks}
        staged = len(set(names.values())) > 1
        self._stages = self._part_stages(ranks) if staged else [ranks]
        routed = any(exchange.kind == "all_to_all" for exchange in groups.exchanges)
        self._experts = [scope for stage in self._stages for scope in self._find_experts(stage)] if routed else []

    def split(self, name: str, ranks: Sequence[int]) -> list[list[int]]:
        """The ranks, parted into those whose parameter of this name is the same one."""
        parts = [[rank for rank in ranks if rank in stage] for stage in self._stages]
        if any(name.startswith(f"{scope}.") for scope in self._experts):
            parts = [[rank] for part in parts for rank in part]
        return [part for part in parts if part]

    def describe(self) -> list[str]:
        """Notes on what is taken for different tensors."""
        notes = []
        if len(self._stages) > 1:
            parts = "; ".join(",".join(map(str, stage)) for stage in self._stages)
            notes.append(f"ranks {parts} hold different modules, as stages of a pipeline do: no replicas of each other")
        if self._experts:
            scopes = ", ".join(dict.fromkeys(self._experts))
            notes.append(f"each rank holds other tensors under {scopes}, as experts do: no replicas of each other")
        return notes

    def _part_stages(self, ranks: Sequence[int]) -> list[list[int]]:
        stages: list[list[int]] = []
        for rank in ranks:
            home = next((stage for stage in stages if self._are_same_stage(stage[0], rank)), None)
            if home is None:
                stages.append([rank])
            else:
                home.append(rank)
        return stages

    def _are_same_stage(self, left: int, right: int) -> bool:
        """Whether most of what both hold under one name is the same."""
        shared = [held for held in self._start.values() if left in held and right in held]
        telling = [held for held in shared if not _is_constant(held[left])]
        return sum(self._are_related(held[left], held[right]) for held in telling) * 2 > len(telling)

    def _find_experts(self, ranks: Sequence[int]) -> Iterable[str]:
        """The outermost modules under which nothing that tells is the same on two ranks."""
        same: dict[str, bool] = {}
        for name, every in self._start.items():
            held = [every[rank] for rank in ranks if rank in every]
            if len(held) > 1 and not _is_constant(held[0]):
                related = any(self._are_related(held[0], other) for other in held[1:])
                for scope in _list_scopes(name):
                    same[scope] = same.get(scope, False) or related
        own = {scope for scope, related in same.items() if not related and scope}
        return [scope for scope in own if not any(above in own for above in _list_scopes(scope))]

    def _are_related(self, left: TensorRecord, right: TensorRecord) -> bool:
        if left.digest == right.digest or is_shard(left) or is_shard(right):
            return True
        if left.shape != right.shape:
            return False
        try:
            ours, theirs = (self._facts.dump.values(one.key).astype(np.float64) for one in (left, right))
        except (KeyError, DumpDamaged):
            return True  # nothing is excused that was not seen
        return bool(np.linalg.norm(ours - theirs) <= _UNRELATED * np.linalg.norm(ours))


def _take_first(records: Mapping[tuple[int, int], TensorRecord]) -> Held:
    first = min((step for step, _ in records), default=0)
    return {rank: record for (step, rank), record in records.items() if step == first}


def _is_constant(record: TensorRecord) -> bool:
    """All ones or zeros as initialised: equal in every module of its kind."""
    found = record.statistics
    return found is not None and found.minimum == found.maximum


def _list_scopes(name: str) -> list[str]:
    parts = name.split(".")[:-1]
    return [".".join(parts[:end]) for end in range(len(parts), -1, -1)]
