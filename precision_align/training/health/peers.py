"""Calls of one run side by side on all ranks: what ranks with the same batch, or of the same replicas, must share."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from precision_align.core.records import OTHER_SCOPES, Call, TensorRecord
from precision_align.core.terms import Pass, Phase, Role, Source
from precision_align.storage.base import Dump
from precision_align.training.health.facts import Facts, read_learning_rates
from precision_align.training.health.findings import Finding, Severity, Value
from precision_align.training.health.groups import Groups
from precision_align.training.health.replicas import find_odd

Place = tuple[int, int, str, int]  # step, micro-batch, scope, call


@dataclass
class Row:
    """One call on all ranks: by rank the call, and hashes of what went in, came out and was held before."""

    place: Place
    calls: dict[int, Call] = field(default_factory=dict)
    inputs: dict[int, tuple[bytes, ...]] = field(default_factory=lambda: defaultdict(tuple))
    outputs: dict[int, tuple[bytes, ...]] = field(default_factory=lambda: defaultdict(tuple))
    buffers: dict[int, tuple[bytes, ...]] = field(default_factory=lambda: defaultdict(tuple))
    shapes: dict[int, tuple[tuple[int, ...], ...]] = field(default_factory=lambda: defaultdict(tuple))


def gather_rows(dump: Dump) -> list[Row]:
    """All modules' first-pass calls in the order of exit on the lowest rank."""
    rows: dict[Place, Row] = {}
    for call in dump.calls:
        if call.pass_ == Pass.FIRST and not call.scope.startswith(OTHER_SCOPES):
            place = call.step, call.micro, call.scope, call.call
            rows.setdefault(place, Row(place)).calls[call.rank] = call
    for record in dump.records:
        key = record.key
        row = rows.get((key.step, key.micro, key.scope, key.call))
        if row is not None and key.source == Source.MODULE and key.phase == Phase.FORWARD and key.pass_ == Pass.FIRST:
            _file(row, record)
    return sorted(rows.values(), key=lambda row: (row.place[0], row.place[1], row.calls[min(row.calls)].exit))


def _file(row: Row, record: TensorRecord) -> None:
    key = record.key
    if key.role == Role.INPUT:
        row.inputs[key.rank] += (record.digest,)
    elif key.role == Role.OUTPUT:
        row.outputs[key.rank] += (record.digest,)
        row.shapes[key.rank] += (record.shape,)
    elif key.role == Role.BUFFER and key.path.startswith("before"):
        row.buffers[key.rank] += (record.digest,)


def check_peers(facts: Facts, groups: Groups, replicas: Sequence[Sequence[int]] | None) -> Iterator[Finding]:
    """What ranks must share and do not, and the other way round."""
    if len(facts.dump.ranks) < 2:
        return
    rows = gather_rows(facts.dump)
    members = [list(group) for group in replicas] if replicas is not None else [list(facts.dump.ranks)]
    for ranks in members:
        yield from _check_buffers(rows, ranks, groups)
        yield from _check_rates(facts, ranks, groups)
    yield from _check_batches(rows, facts, groups)
    yield from _check_draws(rows, groups)
    yield from _check_outputs(rows, facts, groups)


def _differs(values: Mapping[int, object], ranks: Sequence[int]) -> bool:
    held = [values[rank] for rank in ranks if values.get(rank)]
    return len(held) > 1 and any(one != held[0] for one in held)


def _pick(values: Mapping[int, object], ranks: Sequence[int]) -> int:
    return find_odd({rank: values[rank] for rank in ranks if rank in values})


def _check_buffers(rows: Sequence[Row], ranks: Sequence[int], groups: Groups) -> Iterator[Finding]:
    """Buffers at a call's start: DistributedDataParallel has sent them around by then."""
    seen: set[str] = set()
    for row in rows:
        step, _, scope, _ = row.place
        if scope not in seen and _differs(row.buffers, ranks):
            seen.add(scope)
            values = {"group": groups.describe(ranks)}
            yield Finding("replica buffers", Severity.REMARK, step, _pick(row.buffers, ranks), scope, values=values)


def _check_rates(facts: Facts, ranks: Sequence[int], groups: Groups) -> Iterator[Finding]:
    rates: dict[tuple[str, int], dict[int, float]] = defaultdict(dict)
    for (name, (step, rank)), rate in read_learning_rates(facts.dump).items():
        if rank in ranks:
            rates[name, step][rank] = rate
    for (_, step), held in sorted(rates.items(), key=lambda item: item[0][1]):
        finding = _name_other("rank rate", Severity.FAULT, step, held, groups)
        if finding is not None:
            yield finding
            return


def _name_other(code: str, severity: Severity, step: int, held: Mapping[int, float], groups: Groups) -> Finding | None:
    """The one rank with another value than the rest; None where all have the same."""
    if len(set(held.values())) < 2:
        return None
    odd = find_odd(held)
    usual = next(value for rank, value in sorted(held.items()) if rank != odd)
    values: dict[str, Value] = {"group": groups.describe(held), "own": held[odd], "others": usual}
    return Finding(code, severity, step, odd, values=values)


def _list_roots(rows: Sequence[Row]) -> list[Row]:
    """The outermost call of each micro-batch."""
    return [row for row in rows if row.calls[min(row.calls)].parent == -1]


def _check_batches(rows: Sequence[Row], facts: Facts, groups: Groups) -> Iterator[Finding]:
    """Another number of samples on one rank: its samples count more or less where ranks are averaged."""
    shapes: dict[tuple[int, int], dict[int, int]] = defaultdict(dict)
    for record in facts.inputs:
        if record.shape:
            shapes[record.key.step, record.key.micro].setdefault(record.key.rank, record.shape[0])
    for (step, _), held in sorted(shapes.items()):
        finding = _name_other("rank batch", Severity.REMARK, step, held, groups)
        if finding is not None:
            yield finding
            return


def _check_draws(rows: Sequence[Row], groups: Groups) -> Iterator[Finding]:
    """Random numbers: equal on ranks that compute the same, unequal on those that train on different data."""
    batches = _split_by_batch(rows)
    told: set[str] = set()
    for row in rows:
        drawn = {
            rank: str(sorted(dict(call.modes["rng"]).items()))
            for rank, call in row.calls.items()
            if "rng_after" in call.modes and call.leaf
        }
        step, micro, scope, _ = row.place
        for ranks in batches.get((step, micro), []):
            together = [rank for rank in ranks if rank in drawn and row.inputs[rank] == row.inputs[ranks[0]]]
            if "unequal" not in told and _differs(drawn, together):
                told.add("unequal")
                values = {"group": groups.describe(together)}
                yield Finding("generators unequal", Severity.FAULT, step, _pick(drawn, together), scope, values=values)
        apart = [ranks[0] for ranks in batches.get((step, micro), []) if ranks[0] in drawn]
        if "equal" not in told and len(apart) > 1 and len({drawn[rank] for rank in apart}) == 1:
            told.add("equal")
            values = {"group": groups.describe(apart)}
            yield Finding("generators equal", Severity.REMARK, step, apart[-1], scope, values=values)


def _split_by_batch(rows: Sequence[Row]) -> dict[tuple[int, int], list[list[int]]]:
    """(step, micro-batch) -> ranks with bit-equal batches, together."""
    found: dict[tuple[int, int], list[list[int]]] = {}
    for row in _list_roots(rows):
        same: dict[tuple[bytes, ...], list[int]] = defaultdict(list)
        for rank in sorted(row.calls):
            if any(row.inputs[rank]):
                same[row.inputs[rank]].append(rank)
        found.setdefault(row.place[:2], list(same.values()))
    return found


def _check_outputs(rows: Sequence[Row], facts: Facts, groups: Groups) -> Iterator[Finding]:
    """Ranks with the same batch (tensor parallelism) end with the same outputs; where they do not: the first call."""
    roots = {row.place[:2]: row for row in _list_roots(rows)}
    for moment, parts in _split_by_batch(rows).items():
        for ranks in parts:
            root = roots[moment]
            if len(ranks) < 2 or not _parts_alike(root, ranks):
                continue
            finding = _find_parting([row for row in rows if row.place[:2] == moment], ranks, facts, groups)
            if finding is not None:
                yield finding
                return


def _parts_alike(row: Row, ranks: Sequence[int]) -> bool:
    """Whether outputs of equal shapes differ."""
    return not _differs(row.shapes, ranks) and _differs(row.outputs, ranks)


def _find_parting(rows: Sequence[Row], ranks: Sequence[int], facts: Facts, groups: Groups) -> Finding | None:
    """The first call that makes different results of equal inputs and parameters, or whose results, different ones,
    go into a module with equal parameters, of a class that had equal inputs before."""
    equal: set[str] = set()
    for index, row in enumerate(rows):
        call = row.calls[min(row.calls)]
        if not call.leaf or not set(ranks) <= set(row.calls) or not _has_equal_parameters(row, ranks, facts):
            continue
        values = {"group": groups.describe(ranks)}
        if not _differs(row.inputs, ranks):
            equal.add(call.kind)
            if _parts_alike(row, ranks):
                return Finding(
                    "replica outputs",
                    Severity.FAULT,
                    row.place[0],
                    _pick(row.outputs, ranks),
                    row.place[2],
                    values=values,
                )
        elif call.kind in equal and _holds_parameters(row, facts):
            producer = _find_producer(rows[:index], row, ranks)
            return Finding(
                "replica outputs", Severity.FAULT, row.place[0], _pick(row.inputs, ranks), producer, values=values
            )
    return None


def _find_producer(rows: Sequence[Row], row: Row, ranks: Sequence[int]) -> str:
    """The module that made what goes into a call, the caller's name where it was made inline."""
    rank = ranks[0]
    made = [one for one in rows if set(row.inputs[rank]) & set(one.outputs[rank])]
    return made[0].place[2] if made else row.place[2].rpartition(".")[0]


def _list_parameters(row: Row, facts: Facts) -> list[Mapping[tuple[int, int], TensorRecord]]:
    scope = row.place[2]
    prefix = f"{scope}." if scope else ""
    return [
        records for name, records in facts.before.items() if name.startswith(prefix) and "." not in name[len(prefix) :]
    ]


def _holds_parameters(row: Row, facts: Facts) -> bool:
    return bool(_list_parameters(row, facts))


def _has_equal_parameters(row: Row, ranks: Sequence[int], facts: Facts) -> bool:
    step = row.place[0]
    for records in _list_parameters(row, facts):
        if _differs({rank: records[step, rank].digest for rank in ranks if (step, rank) in records}, ranks):
            return False
    return True
