"""Ranks that must hold the same and do not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from precision_align.core.records import TensorRecord
from precision_align.training.health.facts import Facts, Moment
from precision_align.training.health.findings import Finding, Severity


def check_replicas(facts: Facts, groups: Sequence[Sequence[int]] | None = None) -> Iterator[Finding]:
    """Parameters at a step's start, and gradients as the optimizer saw them, that differ between replicas.

    ``groups``: the ranks that hold replicas of one another; None for all ranks. Tensors of unequal shape, and shards
    of distributed tensors, are no replicas.
    """
    for ranks in groups if groups is not None else [facts.dump.ranks]:
        if len(ranks) < 2:
            continue
        yield from _check("replica parameters", facts.before, ranks)
        yield from _check("replica gradients", facts.gradients, ranks)
        yield from _check_generators(facts, ranks)


def _check(code: str, every: Mapping[str, Mapping[Moment, TensorRecord]], ranks: Sequence[int]) -> Iterator[Finding]:
    for name, records in every.items():
        for step in sorted({step for step, rank in records if rank in ranks}):
            held = {rank: records[step, rank] for rank in ranks if (step, rank) in records}
            if _differ([*held.values()]):
                odd = _find_odd({rank: record.digest for rank, record in held.items()})
                yield Finding(code, Severity.FAULT, step, odd, name, values={"ranks": len(held)})
                break


def _differ(records: Sequence[TensorRecord]) -> bool:
    if len(records) < 2 or any(not record.digest or _is_shard(record) for record in records):
        return False
    return len({record.shape for record in records}) == 1 and len({record.digest for record in records}) > 1


def _is_shard(record: TensorRecord) -> bool:
    placements = (record.extra.get("shard") or {}).get("placements", ())
    return any(not str(kind).startswith("Replicate") for kind in placements)


def _find_odd(digests: Mapping[int, bytes]) -> int:
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
