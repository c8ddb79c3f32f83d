"""Parameters that an optimizer step should have moved, and did not, or by another length than the reference's."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from precision_align.core.dtypes import Array, dtype_of
from precision_align.core.records import TensorRecord
from precision_align.core.terms import Tier
from precision_align.storage.base import Dump
from precision_align.training.health.facts import Facts, Moment, is_strange, list_owned, read_learning_rates
from precision_align.training.health.findings import Finding, Severity

_NARROW = ("bfloat16", "float16")
_LOST = 0.9  # share of the values with a gradient that a 16-bit parameter's update leaves as they were
_MOMENTUM = 10.0  # what a momentum of 0.9 makes of a gradient in the long run
_LENGTH = 1.5  # ratio of two updates' lengths: Adam's first step is lr long whatever the gradient's size


def check_updates(facts: Facts) -> Iterator[Finding]:
    """Parameters whose value is bit for bit the same after a step that had a gradient and a learning rate for them."""
    owned, rates = list_owned(facts.dump), read_learning_rates(facts.dump)
    skipped = find_skipped(facts)
    for name, starts in facts.before.items():
        trainable = [moment for moment in facts.updated if moment in starts and starts[moment].requires_grad]
        if not trainable:
            continue
        if owned and name not in owned and not _is_alias(facts.dump, name, owned):
            yield from _check_unowned(facts, name, trainable)
            continue
        for moment in trainable:
            if moment not in skipped and rates.get((name, moment), 1.0) != 0.0:
                yield from _check_step(facts, name, moment, rates.get((name, moment), 1.0))


def check_lasting(facts: Facts) -> Iterator[Finding]:
    """Updates of which nothing is left at the next step's start, and runs that never update."""
    for name, starts in facts.before.items():
        for (step, rank), start in starts.items():
            after, following = facts.after[name].get((step, rank)), starts.get((step + 1, rank))
            if after is None or following is None or not (start.digest and after.digest):
                continue
            if following.digest == start.digest != after.digest:
                yield Finding("update undone", Severity.FAULT, step + 1, rank, place=name)
    yield from _check_never_stepped(facts)


def _check_never_stepped(facts: Facts) -> Iterator[Finding]:
    """An optimizer is there, gradients are, and no step was taken: told once, for accumulation looks the same."""
    passed = sorted({moment for records in facts.shares.values() for moment in records})
    if facts.updated or len({step for step, _ in passed}) < 2 or not list_owned(facts.dump):
        return
    starts = [[records[moment].digest for moment in sorted(records)] for records in facts.before.values()]
    if len(facts.dump.ranks) == 1 and starts and all(len(set(digests)) == 1 for digests in starts):
        steps = len({step for step, _ in passed})
        yield Finding("never stepped", Severity.REMARK, *passed[0], values={"steps": steps})


def _is_alias(dump: Dump, name: str, owned: set[str]) -> bool:
    """Whether a tied parameter is owned under another of its names."""
    others = set(dump.info.parameters.get(name, ()))
    others |= {first for first, names in dump.info.parameters.items() if name in names}
    return bool(others & owned)


def _check_unowned(facts: Facts, name: str, moments: list[Moment]) -> Iterator[Finding]:
    seen = [moment for moment in moments if moment in facts.gradients[name] or moment in facts.shares[name]]
    if seen:
        yield Finding("not owned", Severity.FAULT, *seen[0], place=name, count=len(seen))


def _check_step(facts: Facts, name: str, moment: Moment, rate: float) -> Iterator[Finding]:
    gradient = facts.gradients[name].get(moment)
    after = facts.after[name].get(moment)
    if gradient is None or after is None or _is_zero(gradient):
        return
    before = facts.before[name][moment]
    if not before.digest or not after.digest:
        return
    if before.digest == after.digest and _is_too_small(before, gradient, rate):
        yield Finding("update lost", Severity.REMARK, *moment, place=name, values={"share": 1.0})
    elif before.digest == after.digest:
        yield Finding("not updated", Severity.FAULT, *moment, place=name, values={"dtype": before.dtype})
    elif before.dtype in _NARROW:
        lost = _measure_lost(facts.dump, before, after, gradient)
        if lost > _LOST:
            yield Finding("update lost", Severity.REMARK, *moment, place=name, values={"share": lost})


def _is_too_small(before: TensorRecord, gradient: TensorRecord, rate: float) -> bool:
    """Whether the update lies under the parameter's own rounding: a bias before a normalisation has such a gradient."""
    row, value, slope = dtype_of(before.dtype), before.statistics, gradient.statistics
    if value is None or slope is None or slope.nan or slope.inf or not row.is_floating:
        return False
    return rate * slope.l2 * _MOMENTUM < row.roundoff * value.l2


def _is_zero(record: TensorRecord) -> bool:
    """No value that is not zero; an uneven shard may be empty, which counts too."""
    one = record.statistics
    return one is not None and (one.numel == 0 or (one.l2 == 0.0 and not one.nan))


def _measure_lost(dump: Dump, before: TensorRecord, after: TensorRecord, gradient: TensorRecord) -> float:
    """Of the values with a gradient, the share that the step left bit-equal; 0 where not all values are stored."""
    if any(record.tier != Tier.FULL for record in (before, after, gradient)):
        return 0.0
    moved = dump.values(before.key) != dump.values(after.key)
    active = dump.values(gradient.key) != 0
    return float((~moved & active).sum() / max(int(active.sum()), 1))


def find_skipped(facts: Facts) -> set[Moment]:
    """Steps whose gradients are not finite and that changed no parameter: a loss scaler skipped them."""
    strange = {
        moment
        for records in facts.gradients.values()
        for moment, record in records.items()
        if record.statistics is not None and (record.statistics.nan or record.statistics.inf)
    }
    return {moment for moment in strange if not _changed(facts, moment) and not _starts_broken(facts, moment)}


def _starts_broken(facts: Facts, moment: Moment) -> bool:
    """Whether a parameter holds NaN already: then an update leaves it as it is."""
    return any(moment in records and is_strange(records[moment].statistics) for records in facts.before.values())


def _changed(facts: Facts, moment: Moment) -> bool:
    return any(
        moment in facts.before[name] and facts.before[name][moment].digest != records[moment].digest
        for name, records in facts.after.items()
        if moment in records
    )


def compare_updates(facts: Facts, reference: Facts) -> Iterator[Finding]:
    """The first common step from equal parameters: updates of another length than the reference's."""
    for moment in sorted(set(facts.updated) & set(reference.updated))[:1]:
        for name in facts.after:
            lengths = [_measure_update(side, name, moment) for side in (facts, reference)]
            ours, theirs = lengths
            if ours is None or theirs is None or not _starts_equal(facts, reference, name, moment):
                continue
            if theirs > 0 and not 1 / _LENGTH < ours / theirs < _LENGTH:
                values = {"ratio": ours / theirs}
                yield Finding("updated differently", Severity.FAULT, *moment, place=name, values=values)


def _starts_equal(facts: Facts, reference: Facts, name: str, moment: Moment) -> bool:
    sides = [side.before[name].get(moment) for side in (facts, reference)]
    return all(record is not None for record in sides) and sides[0].digest == sides[1].digest  # type: ignore[union-attr]


def _measure_update(facts: Facts, name: str, moment: Moment) -> float | None:
    """The L2 length of a parameter's update; None where not all values are stored."""
    before, after = facts.before[name].get(moment), facts.after[name].get(moment)
    if before is None or after is None or before.tier != Tier.FULL or after.tier != Tier.FULL:
        return None
    difference: Array = facts.dump.values(after.key).astype(np.float64) - facts.dump.values(before.key)
    return float(np.linalg.norm(difference))
