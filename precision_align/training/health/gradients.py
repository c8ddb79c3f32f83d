"""Gradients that are missing, dead, underflown or exploding, and the logged norm against the tensors."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from statistics import median

from precision_align.core.records import TensorRecord
from precision_align.training.health.facts import Facts, Moment
from precision_align.training.health.findings import Finding, Severity

NORMS = ("grad_norm", "gradient_norm", "global_norm", "gnorm", "total_norm")
_EXPLODES = 100.0  # times the median of the steps before: a warm-up or a hard batch stays under ten
_LEAST_STEPS = 3  # before it, to have a median
_UNDERFLOW = 0.5  # share of float16 gradients that are zero or subnormal; with a working loss scale it is small
_NORM_ERROR = 0.01  # of a logged norm: reductions in 16-bit formats lose 0.4 % at most


def check_gradients(facts: Facts) -> Iterator[Finding]:
    """Dead, missing, underflown and exploding gradients."""
    for name, starts in facts.before.items():
        moments = [moment for moment in facts.updated if moment in starts and starts[moment].requires_grad]
        if moments:
            yield from _check_parameter(facts, name, moments)
    yield from _check_explosion(facts)


def _check_parameter(facts: Facts, name: str, moments: list[Moment]) -> Iterator[Finding]:
    records = [facts.gradients[name][moment] for moment in moments if moment in facts.gradients[name]]
    measured = [record.statistics for record in records if record.statistics is not None]
    severity = Severity.FAULT if len(moments) > 1 else Severity.REMARK  # a zero start (LoRA) leaves one step at most
    if not records and not facts.shares[name]:
        yield Finding("no gradient", Severity.REMARK, *moments[0], place=name, count=len(moments))
    elif measured and all(one.l2 == 0.0 and not one.nan and not one.inf for one in measured):
        yield Finding("dead gradient", severity, *moments[0], place=name, count=len(moments))
    for record, one in zip(records, measured):
        small = (one.zero + one.subnormal) / max(one.numel, 1)
        if record.dtype == "float16" and one.l2 > 0 and one.subnormal and small > _UNDERFLOW:
            values = {"share": small}
            yield Finding("underflow", Severity.FAULT, record.key.step, record.key.rank, name, values=values)


def measure_norms(facts: Facts) -> dict[Moment, float]:
    """(step, rank) -> norm over all parameters' gradients as the optimizer saw them, each parameter once."""
    return _add_squares(facts.gradients.values())


def _add_squares(every: Iterable[Mapping[Moment, TensorRecord]]) -> dict[Moment, float]:
    totals: dict[Moment, float] = {}
    for records in every:
        for moment, record in records.items():
            one = record.statistics
            if one is not None:
                value = math.nan if one.nan or one.inf else one.l2**2
                totals[moment] = totals.get(moment, 0.0) + value
    return {moment: math.sqrt(total) for moment, total in totals.items()}


def _check_explosion(facts: Facts) -> Iterator[Finding]:
    norms = {moment: norm for moment, norm in measure_norms(facts).items() if math.isfinite(norm)}
    for rank in facts.dump.ranks:
        series = [(step, norm) for (step, of), norm in sorted(norms.items()) if of == rank]
        for index, (step, norm) in enumerate(series):
            usual = median(value for _, value in series[:index]) if index >= _LEAST_STEPS else 0.0
            if usual and norm > _EXPLODES * usual:
                worst = _find_worst(facts, (step, rank))
                values = {"norm": norm, "usual": usual}
                yield Finding("exploding gradient", Severity.FAULT, step, rank, worst, values=values)
                break


def _find_worst(facts: Facts, moment: Moment) -> str:
    """The parameter with the largest gradient in a step."""
    sizes = {
        name: records[moment].statistics.l2  # type: ignore[union-attr]
        for name, records in facts.gradients.items()
        if moment in records and records[moment].statistics is not None
    }
    return max(sizes, key=lambda name: sizes[name])


def check_norms(facts: Facts) -> Iterator[Finding]:
    """A logged gradient norm that is not the norm over the model's parameters, each counted once.

    The logged one is meant before clipping, and the recorded gradients may be clipped: smaller recorded ones by one and
    the same factor are no contradiction, larger ones are.
    """
    logged = facts.find_series(*NORMS)
    if not logged or len(facts.dump.ranks) > 1:  # of one rank's share nothing is known
        return
    clipped, raw = measure_norms(facts), _measure_raw(facts)
    for (step, _), value in sorted(logged.items()):
        moment = (step, facts.dump.ranks[0])
        measured = [norms[moment] for norms in (raw, clipped) if math.isfinite(norms.get(moment, math.nan))]
        if not measured or not math.isfinite(value) or not value:
            continue
        ratios = [norm / value for norm in measured]
        if any(abs(ratio - 1) <= _NORM_ERROR for ratio in ratios):
            continue
        # the raw gradients decide; without them only a norm that is too small can be told from clipping
        if moment in raw or max(ratios) > 1 + _NORM_ERROR:
            values = {"logged": value, "measured": measured[0]}
            yield Finding("norm mismatch", Severity.FAULT, *moment, place=NORMS[0], values=values)
            return


def _measure_raw(facts: Facts) -> dict[Moment, float]:
    """Norms before clipping, in steps where every parameter's gradient came from one call in one micro-batch."""
    singles = {
        moment
        for moment in facts.updated
        if all(
            len(facts.shares[name].get(moment, ())) == 1
            for name, records in facts.gradients.items()
            if moment in records
        )
    }
    if facts.find_series("loss_scale"):
        return {}  # recorded as the scaler multiplied them
    shares = ({moment: records[0] for moment, records in every.items()} for every in facts.shares.values())
    return {moment: norm for moment, norm in _add_squares(shares).items() if moment in singles}
