"""Ranks that must hold the same and do not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from precision_align.core.errors import DumpDamaged
from precision_align.core.records import TensorRecord
from precision_align.storage.base import Dump
from precision_align.training.health.facts import Facts, Moment
from precision_align.training.health.families import Families
from precision_align.training.health.findings import Finding, Severity
from precision_align.training.health.groups import Groups, is_shard

_ALIKE = 0.01  # relative L2 of what a common factor leaves; 16-bit gradients leave 0.004


def check_replicas(
    facts: Facts, groups: Groups, families: Families, replicas: Sequence[Sequence[int]] | None = None
) -> Iterator[Finding]:
    """Parameters at a step's start, and gradients as the optimizer saw them, that differ between replicas.

    ``replicas``: the ranks that hold replicas of one another; None for all ranks. Tensors of unequal shape, and shards
    of distributed tensors, are no replicas.
    """
    for ranks in replicas if replicas is not None else [facts.dump.ranks]:
        if len(ranks) < 2:
            continue
        names = {name: families.split(name, ranks) if replicas is None else [list(ranks)] for name in facts.before}
        for part in sorted({tuple(one) for parts in names.values() for one in parts if len(one) > 1}):
            text = groups.describe(part)
            every = [
                {name: records for name, records in held.items() if list(part) in names.get(name, [list(ranks)])}
                for held in (facts.before, facts.gradients)
            ]
            yield from _check("replica parameters", every[0], part, text)
            scaled = list(_check_scaled(facts, every[1], part, text))
            yield from scaled
            if not scaled:
                yield from _check("replica gradients", every[1], part, text)
        yield from _check_generators(facts, ranks)


def _check_scaled(
    facts: Facts, gradients: Mapping[str, Mapping[Moment, TensorRecord]], ranks: Sequence[int], text: str
) -> Iterator[Finding]:
    """One rank whose gradients are all the others', times one factor: clipped, or scaled, on that rank alone."""
    for step in sorted({step for records in gradients.values() for step, _ in records}):
        every = [
            {rank: records[step, rank] for rank in ranks if (step, rank) in records} for records in gradients.values()
        ]
        every = [held for held in every if len(held) > 1 and not any(is_shard(one) for one in held.values())]
        if not any(_differ([*held.values()]) for held in every):
            continue
        odd = find_odd({rank: record.digest for rank, record in every[0].items()})
        other = next(rank for rank in sorted(every[0]) if rank != odd)
        factors = [_measure_factor(facts.dump, held[odd], held[other]) for held in every]
        factor = factors[0]
        even = factor is not None and all(one is not None and abs(one / factor - 1) < _ALIKE for one in factors)
        if factor is not None and even and len(every) > 1 and abs(factor - 1) > _ALIKE:
            if factor > 1 and len(ranks) == 2:  # of two, the smaller one was clipped
                odd, factor = other, 1 / factor
            yield Finding("rank scaled", Severity.FAULT, step, odd, values={"group": text, "factor": factor})
        return


def _measure_factor(dump: Dump, left: TensorRecord, right: TensorRecord) -> float | None:
    """left / right where they are proportional, else None."""
    try:
        ours, theirs = (dump.values(one.key).astype(np.float64).reshape(-1) for one in (left, right))
    except (KeyError, DumpDamaged):
        return None
    size = float(theirs @ theirs)
    factor = float(ours @ theirs) / size if size else 0.0
    near = np.linalg.norm(ours - factor * theirs) <= _ALIKE * np.linalg.norm(ours)
    return factor if near and factor > 0 else None


def _check(
    code: str, every: Mapping[str, Mapping[Moment, TensorRecord]], ranks: Sequence[int], text: str
) -> Iterator[Finding]:
    for name, records in every.items():
        for step in sorted({step for step, rank in records if rank in ranks}):
            held = {rank: records[step, rank] for rank in ranks if (step, rank) in records}
            if _differ([*held.values()]):
                odd = find_odd({rank: record.digest for rank, record in held.items()})
                yield Finding(code, Severity.FAULT, step, odd, name, values={"ranks": len(held), "group": text})
                break


def _differ(records: Sequence[TensorRecord]) -> bool:
    if len(records) < 2 or any(not record.digest or is_shard(record) for record in records):
        return False
    return len({record.shape for record in records}) == 1 and len({record.digest for record in records}) > 1


def find_odd(digests: Mapping[int, object]) -> int:
    """The rank whose value the fewest share, the highest of several."""
    values = list(digests.values())
    return min(sorted(digests, reverse=True), key=lambda rank: values.count(digests[rank]))


def _check_generators(facts: Facts, ranks: Sequence[int]) -> Iterator[Finding]:
    """Generator states at the outermost call: equal ones draw equal dropout masks on every replica, unequal other ones.

    Data-parallel trainings want either; so this is a remark, and only where the states part during the run.
    """
    states: dict[int, dict[int, str]] = {}
    for call in facts.dump.calls:
        if call.scope == "" and call.call == 0 and call.micro == 0 and "rng" in call.modes:
            states.setdefault(call.step, {})[call.rank] = str(sorted(dict(call.modes["rng"]).items()))
    equal = {step: len(set(held.values())) == 1 for step, held in sorted(states.items()) if set(ranks) <= set(held)}
    steps = list(equal)
    for earlier, later in zip(steps, steps[1:]):
        if equal[earlier] and not equal[later]:
            yield Finding("replica generators", Severity.REMARK, later, place="", values={"step": earlier})
            return
