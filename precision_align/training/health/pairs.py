"""Settings of two runs that must fit each other."""

from __future__ import annotations

from collections.abc import Iterator

from precision_align.storage.base import Dump
from precision_align.training.health.facts import Facts, read_learning_rates
from precision_align.training.health.findings import Finding, Severity

_RATIO = 1.01  # settings that differ by more are no round-off of a schedule


def compare_settings(facts: Facts, reference: Facts) -> Iterator[Finding]:
    """Learning rate against batch size, held against the reference run."""
    sizes = [_measure_batch(side) for side in (facts, reference)]
    rates = [_first_rate(side.dump) for side in (facts, reference)]
    if all(sizes) and all(rates):
        batch, rate = sizes[0] / sizes[1], rates[0] / rates[1]  # type: ignore[operator]
        if max(batch, 1 / batch) > _RATIO or max(rate, 1 / rate) > _RATIO:
            values = {"batch": batch, "rate": rate}
            severity = Severity.FAULT if max(batch / rate, rate / batch) > _RATIO else Severity.REMARK
            yield Finding("rate against batch", severity, facts.dump.steps[0], place="lr", values=values)


def _measure_batch(facts: Facts) -> int:
    """Samples that all ranks together see in the first step: the first dimension of the model's inputs, summed."""
    step = facts.dump.steps[0] if facts.dump.steps else 0
    sizes: dict[tuple[int, int, int], int] = {}
    for record in facts.inputs:
        if record.key.step == step and record.shape:
            sizes.setdefault((record.key.rank, record.key.micro, record.key.call), record.shape[0])
    return sum(sizes.values())


def _first_rate(dump: Dump) -> float | None:
    """The largest learning rate of the first recorded optimizer step; None where none is known."""
    rates = read_learning_rates(dump)
    first = min((moment for _, moment in rates), default=None)
    return max((rate for (_, moment), rate in rates.items() if moment == first), default=None)
