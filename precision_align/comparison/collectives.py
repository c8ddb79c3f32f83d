"""Each collective of one run against what its ranks gave: no second run is needed.

Copies must be equal bit for bit. Sums are held against the float64 sum of all ranks' inputs, element by element, with
the bound for a sum of R terms in any order, |out - sum| <= R * u * sum|x| + u * |out| + eta (Higham, Accuracy and
Stability, section 4.2: R - 1 additions and one division of an average), u that of the dtype on the wire.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Callable

import numpy as np

from precision_align.comparison.exchanges import Exchange, Share, iterate_outputs
from precision_align.core.dtypes import Array, dtype_of
from precision_align.core.errors import DumpDamaged
from precision_align.core.records import TensorRecord
from precision_align.core.terms import Status, Tier
from precision_align.numerics.combinations import fit_combination
from precision_align.storage.base import Dump

_SUMS = ("sum", "avg", "mean")
_EXACT: dict[str, Callable[[Array, Array], Array]] = {
    "min": np.minimum,
    "max": np.maximum,
    "band": np.bitwise_and,
    "bor": np.bitwise_or,
    "bxor": np.bitwise_xor,
}


@dataclass(frozen=True)
class Judged:
    """What became of one collective. ``rank``: whose output is furthest off; ``metrics``: "z", its error in units of
    the bound, "mismatch", the share of elements that differ where a copy was due; ``coefficients``: of each rank's
    input in that output, () where they cannot be told; ``record``: that output."""

    exchange: Exchange
    status: Status
    note: str
    rank: int = 0
    metrics: dict[str, float] = field(default_factory=dict)
    coefficients: tuple[float, ...] = ()
    record: TensorRecord | None = None


@dataclass(frozen=True)
class _Expected:
    """One output as it should be: exact words, or values with a bound; ``parts``: the ranks' shares of it."""

    words: Array | None = None
    values: Array | None = None
    bound: Array | None = None
    parts: Sequence[Array] = ()


class _Unjudged(Exception):
    """Why a collective cannot be judged."""


def judge_exchange(dump: Dump, exchange: Exchange) -> Judged:
    """Hold a collective's outputs against its inputs."""
    try:
        _require_whole(exchange)
        return _judge(dump, exchange)
    except _Unjudged as error:
        return Judged(exchange, Status.INCONCLUSIVE, str(error), min(exchange.shares))
    except (KeyError, DumpDamaged) as error:
        return Judged(exchange, Status.INCONCLUSIVE, f"a tensor is not there: {error}", min(exchange.shares))


def _require_whole(exchange: Exchange) -> None:
    if exchange.missing:
        lacking = ", ".join(map(str, exchange.missing))
        raise _Unjudged(f"not recorded on rank {lacking} of its group")
    if exchange.kind != "send" and len({share.call.kind for share in exchange.shares.values()}) > 1:
        kinds = ", ".join(f"rank {rank}: {share.call.kind}" for rank, share in sorted(exchange.shares.items()))
        raise _Unjudged(f"the ranks were at different collectives ({kinds})")
    for share in exchange.shares.values():
        weak = [record for record in (*share.inputs, *share.outputs) if record.tier != Tier.FULL or record.reason]
        if weak:
            raise _Unjudged(weak[0].reason or f"only its {weak[0].tier} is recorded")


def _judge(dump: Dump, exchange: Exchange) -> Judged:
    expect = _EXPECTATIONS.get(exchange.kind)
    if expect is None:
        raise _Unjudged(f"a {exchange.kind} is not judged")
    worst: Judged | None = None
    for rank, index, record in iterate_outputs(exchange):
        expected = expect(dump, exchange, rank, index, record)
        if expected is None:
            continue
        judged = _hold(dump, exchange, rank, record, expected)
        if worst is None or (judged.status == Status.FAIL, _size(judged)) > (
            worst.status == Status.FAIL,
            _size(worst),
        ):
            worst = judged
    if worst is None:
        raise _Unjudged("its outputs are not recorded")
    return worst


def _size(judged: Judged) -> float:
    return max(judged.metrics.values(), default=0.0)


def _hold(dump: Dump, exchange: Exchange, rank: int, record: TensorRecord, expected: _Expected) -> Judged:
    if expected.words is not None:
        share = (
            float(np.mean(dump.payload(record.key).reshape(-1) != expected.words.reshape(-1))) if record.nbytes else 0.0
        )
        note = "" if share == 0.0 else f"rank {rank} did not get what was sent: {share:.1%} of the elements differ"
        status = Status.PASS if share == 0.0 else Status.FAIL
        return Judged(exchange, status, note, rank, {"mismatch": share}, (), record)
    assert expected.values is not None
    assert expected.bound is not None
    actual = dump.values(record.key).astype(np.float64).reshape(-1)
    ratio = measure_excess(actual, expected.values.reshape(-1), expected.bound.reshape(-1))
    if ratio <= 1.0:
        return Judged(exchange, Status.PASS, "", rank, {"z": ratio}, (), record)
    fitted = fit_combination(expected.parts, actual)
    coefficients = () if fitted is None else fitted.coefficients
    note = f"rank {rank}: {ratio:.3g} times the bound of a sum in any order"
    note += f"; {describe_coefficients(exchange, coefficients)}" if coefficients else ""
    return Judged(exchange, Status.FAIL, note, rank, {"z": ratio}, coefficients, record)


def measure_excess(actual: Array, expected: Array, bound: Array) -> float:
    """The largest error in units of the bound; infinite where one side alone is finite.

    Elements with an infinite or NaN input (the bound is not finite there) are held by their kind only.
    """
    finite = np.isfinite(expected) & np.isfinite(bound)
    if (np.isfinite(actual) & ~finite & ~np.isfinite(expected)).any() or (~np.isfinite(actual) & finite).any():
        return float("inf")
    if not finite.any():
        return 0.0
    return float(np.max(np.abs(actual[finite] - expected[finite]) / bound[finite]))


def describe_coefficients(exchange: Exchange, coefficients: Sequence[float]) -> str:
    """The combination of the ranks' inputs that came out, in words."""
    parts = ", ".join(f"{one:.3g} x rank {rank}" for rank, one in zip(exchange.ranks, coefficients))
    return f"it holds {parts}"


def _list_inputs(exchange: Exchange, index: int) -> list[TensorRecord]:
    records = []
    for rank in exchange.ranks:
        inputs = exchange.shares[rank].inputs
        if index >= len(inputs):
            raise _Unjudged(f"rank {rank} gave {len(inputs)} tensors, another more")
        records.append(inputs[index])
    if len({(record.dtype, int(np.prod(record.shape))) for record in records}) > 1:
        raise _Unjudged("the ranks gave tensors of different sizes or dtypes")
    return records


def _reduce(exchange: Exchange, dtype: str, parts: Sequence[Array]) -> _Expected:
    """The reduction of flat parts in float64, and its bound; integers and comparisons are exact."""
    row, name = dtype_of(dtype), exchange.reduction
    if name in _EXACT:
        result = parts[0]
        for part in parts[1:]:
            result = _EXACT[name](result, part)
        return _Expected(values=result.astype(np.float64), bound=np.full(result.shape, row.eta or 0.5), parts=parts)
    if name not in _SUMS or row.kind == "complex":
        raise _Unjudged(f"a reduction by {name} of {dtype} is not judged")
    wide = [part.astype(np.float64) for part in parts]
    total, size = np.sum(wide, axis=0), np.sum(np.abs(wide), axis=0)
    if not row.is_floating:
        return _Expected(values=total, bound=np.full(total.shape, 0.5), parts=wide)
    divisor = 1.0 if name == "sum" else float(len(parts))
    bound = (len(parts) * row.roundoff * size + row.roundoff * np.abs(total)) / divisor + row.eta
    bound = np.where(size > row.maximum, np.inf, bound)  # it may overflow in one order and not in another
    return _Expected(values=total / divisor, bound=bound, parts=wide)


def _read_parts(dump: Dump, records: Sequence[TensorRecord]) -> list[Array]:
    return [dump.values(record.key).reshape(-1) for record in records]


def _expect_reduced(dump: Dump, exchange: Exchange, rank: int, index: int, record: TensorRecord) -> _Expected | None:
    if exchange.kind == "reduce" and rank != exchange.ranks[exchange.root or 0]:
        return None
    records = _list_inputs(exchange, index)
    return _reduce(exchange, record.dtype, _read_parts(dump, records))


def _expect_reduce_scattered(
    dump: Dump, exchange: Exchange, rank: int, index: int, record: TensorRecord
) -> _Expected | None:
    """One flat tensor a rank is cut into as many pieces, or each rank gives a list of pieces."""
    position, count = exchange.ranks.index(rank), len(exchange.ranks)
    size = int(np.prod(record.shape))
    pieces = len(exchange.first.inputs)
    outputs = len(exchange.shares[rank].outputs)
    if outputs == 1 and pieces == count and count > 1:
        return _reduce(exchange, record.dtype, _read_parts(dump, _list_inputs(exchange, position)))
    parts = _read_parts(dump, _list_inputs(exchange, index))
    if parts[0].size != size * count:
        raise _Unjudged("the pieces do not add up to what was given")
    cut = [part[position * size : (position + 1) * size] for part in parts]
    return _reduce(exchange, record.dtype, cut)


def _expect_gathered(dump: Dump, exchange: Exchange, rank: int, index: int, record: TensorRecord) -> _Expected | None:
    """One tensor that is all ranks' one after the other, or a list with one of each rank."""
    count, outputs = len(exchange.ranks), len(exchange.shares[rank].outputs)
    given = len(exchange.first.inputs)
    if outputs == count * given and count > 1:
        source = exchange.shares[exchange.ranks[index % count]].inputs[index // count]
        return _Expected(words=dump.payload(source.key))
    pieces = [dump.payload(one.key).reshape(-1) for one in _list_inputs(exchange, index)]
    return _Expected(words=np.concatenate(pieces))


def _expect_sent(dump: Dump, exchange: Exchange, rank: int, index: int, record: TensorRecord) -> _Expected | None:
    senders = [share for share in exchange.shares.values() if share.call.kind == "send"]
    if not senders:
        raise _Unjudged("its sender is not recorded")
    return _Expected(words=dump.payload(senders[0].inputs[index].key))


def _expect_rooted(dump: Dump, exchange: Exchange, rank: int, index: int, record: TensorRecord) -> _Expected | None:
    """A broadcast of the root's tensors, or a scatter of its list."""
    inputs = exchange.shares[exchange.ranks[exchange.root or 0]].inputs
    place = exchange.ranks.index(rank) if exchange.kind == "scatter" else index
    return _Expected(words=dump.payload(inputs[place].key))


def _expect_exchanged(dump: Dump, exchange: Exchange, rank: int, index: int, record: TensorRecord) -> _Expected | None:
    """All to all: a list of tensors, or one cut into rows by its splits (equal ones where none are given)."""
    position, count = exchange.ranks.index(rank), len(exchange.ranks)
    if len(exchange.shares[rank].outputs) == count and count > 1:
        return _Expected(words=dump.payload(exchange.shares[exchange.ranks[index]].inputs[position].key))
    pieces = [_cut(dump, exchange.shares[other], position, count) for other in exchange.ranks]
    return _Expected(words=np.concatenate(pieces))


def _cut(dump: Dump, share: Share, position: int, count: int) -> Array:
    words = dump.payload(share.inputs[0].key)
    splits = share.call.modes["collective"]["splits"][0] or [words.shape[0] // count] * count
    start = sum(splits[:position])
    return words[start : start + splits[position]].reshape(-1)


_EXPECTATIONS: dict[str, Callable[[Dump, Exchange, int, int, TensorRecord], _Expected | None]] = {
    "all_reduce": _expect_reduced,
    "reduce": _expect_reduced,
    "reduce_scatter": _expect_reduce_scattered,
    "all_gather": _expect_gathered,
    "gather": _expect_gathered,
    "broadcast": _expect_rooted,
    "scatter": _expect_rooted,
    "all_to_all": _expect_exchanged,
    "send": _expect_sent,
}
