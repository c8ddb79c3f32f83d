"""The ranks of a run in a comparison: rows for its collectives, and the one at which agreement between runs ends."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from precision_align.alignment.side import Side
from precision_align.comparison.exchanges import Exchange, Share, match_exchanges
from precision_align.comparison.rows import Blame, make_row
from precision_align.core.dtypes import dtype_of
from precision_align.core.errors import DumpDamaged
from precision_align.core.records import TensorRecord
from precision_align.core.results import Limit, RecordResult
from precision_align.core.terms import Phase, Site
from precision_align.numerics.limits import raw_limit
from precision_align.storage.base import Dump

if TYPE_CHECKING:
    from precision_align.comparison.collectives import Judged

EVIDENCE = "ranks"  # of a row: a collective's output against what all ranks gave


def judge_collectives(dump: Dump, side: Side, rank: int | None = None) -> list[RecordResult]:
    """A row for each collective of a dump; ``rank``: under which they are filed where ranks were merged into one."""
    exchanges = match_exchanges(dump)
    if not exchanges:
        return []
    from precision_align.comparison.collectives import judge_exchange

    rows = []
    for exchange in exchanges:
        judged = judge_exchange(dump, exchange)
        record = judged.record or next(iter(exchange.first.outputs or exchange.first.inputs), None)
        if record is not None:
            row = _make_row(judged, record, side.names.get(exchange.scope) or exchange.scope)
            rows.append(row if rank is None else replace(row, rank=rank))
    return rows


def _make_row(judged: Judged, record: TensorRecord, scope: str) -> RecordResult:
    exchange, call = judged.exchange, judged.exchange.shares[record.key.rank].call
    operation = f"{exchange.kind} ({exchange.reduction})" if exchange.reduction else exchange.kind
    phase = Phase(call.modes["phase"])
    blame = Blame(scope, Site.INLINE, phase, int(call.modes["module_call"]), operation, call.source)
    name = "z" if "z" in judged.metrics else "mismatch"
    origin = "sum of all ranks' inputs in any order" if name == "z" else "what was sent, bit for bit"
    limit = Limit(name, 1.0 if name == "z" else 0.0, origin)
    text = describe_exchange(exchange)
    note = f"{text}: {judged.note}" if judged.note else text
    return make_row(
        record, blame, judged.status, EVIDENCE, metrics=judged.metrics, limit=limit, note=note, order=call.enter
    )


def describe_exchange(exchange: Exchange) -> str:
    """ "all_reduce over ranks 0,1 (tp)"."""
    name = f" ({exchange.group})" if exchange.group else ""
    return f"{exchange.kind} over ranks {','.join(map(str, sorted(exchange.ranks)))}{name}"


def find_boundary(reference: Dump, candidate: Dump) -> list[str]:
    """A note on the collective at which agreement of two runs on the same ranks ends; [] where none says anything."""
    if list(reference.ranks) != list(candidate.ranks) or len(candidate.ranks) < 2:
        return []
    theirs = {_identify(exchange, number): exchange for exchange, number in _number(match_exchanges(reference))}
    last = ""
    for exchange, number in _number(match_exchanges(candidate)):
        other = theirs.get(_identify(exchange, number))
        if other is None:
            continue
        where = f"{describe_exchange(exchange)}, {exchange.scope or 'outside of all modules'}, step {exchange.step}"
        entered = _find_parted(reference, candidate, other, exchange, lambda share: share.inputs)
        left = _find_parted(reference, candidate, other, exchange, lambda share: share.outputs)
        if entered or left:
            return [_phrase(where, last, entered, left)]
        last = where
    return []


def _phrase(where: str, last: str, entered: Sequence[int], left: Sequence[int]) -> str:
    ranks = ", ".join(map(str, entered or left))
    what = (
        f"its inputs differ on rank {ranks}" if entered else f"its inputs agree and its results differ on rank {ranks}"
    )
    before = f"the last that agrees is {last}" if last else "none before it agrees"
    return f"agreement between the ranks of both runs ends at {where}: {what}; {before}"


def _number(exchanges: Sequence[Exchange]) -> list[tuple[Exchange, int]]:
    """Each with its number among those of its kind, group and step: a run may have others in between."""
    counts: dict[tuple[object, ...], int] = {}
    numbered = []
    for exchange in exchanges:
        place = _identify(exchange, 0)
        counts[place] = counts.get(place, -1) + 1
        numbered.append((exchange, counts[place]))
    return numbered


def _identify(exchange: Exchange, number: int) -> tuple[object, ...]:
    return exchange.step, exchange.kind, exchange.ranks, exchange.first.call.modes["phase"], number


def _find_parted(
    reference: Dump,
    candidate: Dump,
    theirs: Exchange,
    ours: Exchange,
    select: Callable[[Share], Sequence[TensorRecord]],
) -> list[int]:
    """Ranks on which tensors of both runs differ by more than the raw limit."""
    parted = []
    for rank, share in ours.shares.items():
        other = theirs.shares.get(rank)
        pairs = zip(select(share), select(other)) if other is not None else ()
        if any(_differ(reference, candidate, right, left) for left, right in pairs):
            parted.append(rank)
    return sorted(parted)


def _differ(reference: Dump, candidate: Dump, theirs: TensorRecord, ours: TensorRecord) -> bool:
    if ours.digest == theirs.digest and ours.digest:
        return False
    if ours.shape != theirs.shape:
        return True
    try:
        left, right = (dump.values(record.key) for dump, record in ((candidate, ours), (reference, theirs)))
    except (KeyError, DumpDamaged):
        return False
    if not dtype_of(ours.dtype).is_floating:
        return bool((left != right).any())
    scale = float(np.max(np.abs(right.astype(np.float64)), initial=0.0))
    error = float(np.max(np.abs(left.astype(np.float64) - right.astype(np.float64)), initial=0.0))
    return not error <= raw_limit(ours.dtype) * scale


def note_short_ranks(reference: Dump | None, candidate: Dump) -> list[str]:
    """Ranks that end before the others; of those that are not there at all the dumps' own notes tell."""
    notes = []
    sides: Mapping[str, Dump | None] = {"reference": reference, "candidate": candidate}
    for name, dump in sides.items():
        if dump is None or len(dump.ranks) < 2:
            continue
        last = dict.fromkeys(dump.ranks, -1)
        for record in dump.records:
            last[record.key.rank] = max(last[record.key.rank], record.key.step)
        longest = max(last.values())
        notes += [
            f"{name}: rank {rank} ends after step {step}, others after step {longest}"
            for rank, step in last.items()
            if step < longest
        ]
    return notes
