"""What the model was given and what loss it began with."""

from __future__ import annotations

import math
from collections.abc import Iterator

from precision_align.core.records import Statistics, TensorRecord
from precision_align.training.health.facts import Facts
from precision_align.training.health.findings import Finding, Severity

IGNORED_LABEL = -100  # torch.nn.CrossEntropyLoss's default ignore_index, which the common data collators write
_TINY = 1e-5  # a first loss under this: a model that predicts every label with probability 0.99999 needs no training
_SHUT = (
    -1e4
)  # an additive mask whose every value is lower lets nothing through; collators write -1e4 or the dtype's least


def check_inputs(facts: Facts) -> Iterator[Finding]:
    """Losses that are zero, tiny or not finite; labels and masks that leave nothing."""
    yield from _check_losses(facts)
    for record in facts.inputs:
        if record.statistics is not None and record.statistics.numel:
            yield from _check_input(record, record.statistics)
    for (step, _), valid in facts.find_series("batch.valid_labels").items():
        if valid == 0:
            yield Finding("no labels", Severity.FAULT, step, place="labels")
    for (step, _), share in facts.find_series("batch.padding_share").items():
        if share == 1:
            yield Finding("empty mask", Severity.FAULT, step, place="mask")


def _check_losses(facts: Facts) -> Iterator[Finding]:
    losses = sorted(facts.find_series("loss", "lm loss").items())
    bad = next((step for (step, _), value in losses if not math.isfinite(value)), None)
    if bad is not None:
        yield Finding("loss not finite", Severity.FAULT, bad, place="loss")
    if not losses:
        return
    (step, _), first = losses[0]
    if first == 0:
        yield Finding("zero loss", Severity.FAULT, step, place="loss")
    elif abs(first) < _TINY:
        yield Finding("tiny loss", Severity.FAULT, step, place="loss", values={"loss": first})


def _check_input(record: TensorRecord, statistics: Statistics) -> Iterator[Finding]:
    name = record.key.path.lower()
    whole = not record.dtype.startswith(("float", "bfloat"))
    if ("label" in name or "target" in name) and whole and statistics.maximum == statistics.minimum == IGNORED_LABEL:
        yield Finding("no labels", Severity.FAULT, record.key.step, record.key.rank, record.key.path)
    if "mask" in name and _lets_nothing(statistics, whole):
        yield Finding("empty mask", Severity.FAULT, record.key.step, record.key.rank, record.key.path)
    if statistics.nan or (statistics.inf and "mask" not in name):
        yield Finding("bad input", Severity.FAULT, record.key.step, record.key.rank, record.key.path)


def _lets_nothing(statistics: Statistics, whole: bool) -> bool:
    if whole:
        return statistics.zero == statistics.numel
    return statistics.inf == statistics.numel or statistics.maximum < _SHUT
