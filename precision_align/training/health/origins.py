"""Where a NaN was made: the first tensor that has one although nothing it was made from has."""

from __future__ import annotations

from collections.abc import Iterator

from precision_align.core.keys import Key
from precision_align.core.records import TensorRecord
from precision_align.core.terms import Phase, Role, Source
from precision_align.training.health.facts import Facts, Moment, name_parameter
from precision_align.training.health.findings import Finding, Severity
from precision_align.training.health.scales import SCALES, judge_skipped
from precision_align.training.health.updates import find_skipped

_KINDS = {
    (Phase.FORWARD, Role.INPUT): "nan input",
    (Phase.FORWARD, Role.PARAMETER): "nan parameter",
    (Phase.FORWARD, Role.BUFFER): "nan parameter",
    (Phase.FORWARD, Role.OUTPUT): "nan forward",
    (Phase.FORWARD, Role.LOSS): "nan loss",
    (Phase.BACKWARD, Role.GRADIENT): "nan backward",
    (Phase.STEP, Role.GRADIENT): "nan gradient",
    (Phase.STEP, Role.PARAMETER): "nan update",
    (Phase.STEP, Role.STATE): "nan update",
}


def find_origin(facts: Facts) -> Iterator[Finding]:
    """The first record with a NaN, in the order in which tensors were made, and the infinity before it, if any.

    Records come in the order of the calls, inputs before outputs and children before the modules around them, so the
    first one stands at its maker.
    """
    forgiven = _find_forgiven(facts)
    broken = [
        record for record in facts.strange
        if record.statistics is not None and record.statistics.nan
        and not (record.key.phase != Phase.FORWARD and (record.key.step, record.key.rank) in forgiven)
    ]  # fmt: skip
    if not broken:
        return
    first = min(broken, key=_order)
    key = first.key
    kind = _KINDS.get((key.phase, key.role), "nan forward")
    kinds = {call.scope: call.kind for call in facts.dump.calls if (call.step, call.rank) == (key.step, key.rank)}
    values = {"operator": kinds.get(key.scope, "").rsplit(".", 1)[-1], "path": key.path, "record": str(key)}
    yield Finding(kind, Severity.FAULT, key.step, key.rank, _name(key), values=values)
    infinite = [
        record for record in facts.strange
        if record.statistics is not None and record.statistics.inf and not record.statistics.nan
        and record.key.role in (Role.OUTPUT, Role.GRADIENT) and _order(record) < _order(first)
        and (record.key.step, record.key.rank) == (key.step, key.rank)
    ]  # fmt: skip
    if infinite:
        source = min(infinite, key=_order).key
        values = {
            "operator": kinds.get(source.scope, "").rsplit(".", 1)[-1],
            "path": source.path,
            "record": str(source),
        }
        yield Finding("inf before nan", Severity.REMARK, source.step, source.rank, _name(source), values=values)


def _find_forgiven(facts: Facts) -> set[Moment]:
    """Steps whose gradients a loss scaler found out and skipped, as it should."""
    skipped = sorted(find_skipped(facts)) if facts.find_series(*SCALES) else []
    return set(skipped) if skipped and judge_skipped(facts, skipped).severity == Severity.REMARK else set()


def _order(record: TensorRecord) -> tuple[int, int, int]:
    return record.key.step, record.key.rank, record.order


def _name(key: Key) -> str:
    if key.source in (Source.PARAMETERS, Source.OPTIMIZER):
        return name_parameter(key, key.path)
    return key.scope
