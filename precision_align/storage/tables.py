"""Records, calls and points as table rows, and back; run information as JSON, and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from precision_align.core.dtypes import Array
from precision_align.core.keys import Key
from precision_align.core.records import Call, Point, RunInfo, Statistics, TensorRecord
from precision_align.core.terms import Tier
from precision_align.storage import layout
from precision_align.storage.entries import find_dtype
from precision_align.storage.texts import TextReader, TextWriter, decode_value, encode_value

Row = tuple[Any, ...]
_NO_DIMS = [0] * layout.MAX_DIMS
_NO_STATISTICS = Statistics(0, 0, 0, 0, 0, 0.0, 0.0, 0.0, 0.0)


@dataclass(frozen=True)
class Placement:
    """Where a file keeps what belongs to a record; a length of None: not stored. Bytes for the payload, elements for
    the sketch."""

    offset: int = 0
    stored: int | None = None
    expanded: int = 0
    sketch_offset: int = 0
    sketch_length: int | None = None


def index_row(record: TensorRecord, place: Placement, texts: TextWriter) -> Row:
    """One row of the index, its fields in the order of :data:`layout.INDEX`."""
    key, statistics = record.key, record.statistics or _NO_STATISTICS
    dtype = find_dtype(record.dtype)
    shape, stride = tuple(record.shape), tuple(record.stride)
    wide = len(shape) > layout.MAX_DIMS or len(stride) != len(shape)
    return (
        key.step,
        key.micro,
        key.rank,
        record.order,
        dtype.code if dtype else 0,
        dtype.word if dtype else "",
        layout.TIERS.index(record.tier),
        _flags(record, place),
        len(shape),
        place.expanded,
        _fit(shape),
        _fit(stride),
        place.offset,
        place.stored or 0,
        record.nbytes,
        list(record.digest) if record.digest else [0] * 16,
        statistics.numel,
        statistics.nan,
        statistics.inf,
        statistics.zero,
        statistics.subnormal,
        statistics.minimum,
        statistics.maximum,
        statistics.mean,
        statistics.l2,
        place.sketch_offset,
        place.sketch_length or 0,
        texts.intern(record.dtype),
        texts.intern(record.layout),
        texts.intern(record.device),
        texts.intern(record.reason),
        texts.intern(record.extra) if record.extra else 0,
        texts.intern([list(shape), list(stride)]) if wide else 0,
    )


def _flags(record: TensorRecord, place: Placement) -> int:
    flags = layout.REQUIRES_GRAD if record.requires_grad else 0
    flags |= layout.HAS_DIGEST if record.digest else 0
    flags |= layout.HAS_STATISTICS if record.statistics else 0
    flags |= layout.HAS_PAYLOAD if place.stored is not None else 0
    return flags | (layout.HAS_SKETCH if place.sketch_length is not None else 0)


def _fit(sizes: tuple[int, ...]) -> list[int]:
    return (list(sizes) + _NO_DIMS)[: layout.MAX_DIMS]


def strip_payload(row: Row, reason: int) -> Row:
    """The same index row without its payload; ``reason``: the number of a text."""
    values = dict(zip(layout.INDEX.names or (), row))
    if values["flags"] & layout.HAS_PAYLOAD:
        values["flags"] &= ~layout.HAS_PAYLOAD
        values.update(tier=layout.TIERS.index(Tier.STATISTICS), offset=0, stored=0, expanded=0, reason=reason)
    return tuple(values.values())


def build_table(rows: Sequence[Row], dtype: np.dtype[Any]) -> tuple[Array, list[int]]:
    """Rows as one structured array, and the numbers of those that do not fit into its columns and were left out.

    Filled column by column, which is several times cheaper than row by row.
    """
    try:
        return _fill(rows, dtype), []
    except (OverflowError, TypeError, ValueError):
        rejected = [number for number, row in enumerate(rows) if not _fits(row, dtype)]
        return _fill([row for number, row in enumerate(rows) if number not in set(rejected)], dtype), rejected


def _fill(rows: Sequence[Row], dtype: np.dtype[Any]) -> Array:
    table = np.zeros(len(rows), dtype=dtype)
    for name, column in zip(dtype.names or (), zip(*rows)):
        table[name] = column
    return table


def _fits(row: Row, dtype: np.dtype[Any]) -> bool:
    try:
        _fill([row], dtype)
    except (OverflowError, TypeError, ValueError):
        return False
    return True


def read_record(row: np.void, key: str, texts: TextReader) -> TensorRecord:
    """The record of one index row. Raises ValueError, KeyError or IndexError on nonsense."""
    values = dict(zip(layout.INDEX.names or (), row.item()))
    shape, stride = _read_dims(values, texts)
    flags = values["flags"]
    return TensorRecord(
        key=Key.parse(key),
        dtype=texts[values["dtype_name"]],
        shape=shape,
        stride=stride,
        layout=texts[values["layout"]],
        device=texts[values["device"]],
        requires_grad=bool(flags & layout.REQUIRES_GRAD),
        order=values["order"],
        tier=layout.TIERS[values["tier"]],
        digest=values["digest"].tobytes() if flags & layout.HAS_DIGEST else b"",
        statistics=_read_statistics(values) if flags & layout.HAS_STATISTICS else None,
        nbytes=values["nbytes"],
        reason=texts[values["reason"]],
        extra=texts[values["extra"]] or {},
    )


def _read_dims(values: Mapping[str, Any], texts: TextReader) -> tuple[tuple[int, ...], tuple[int, ...]]:
    if values["wide"]:
        shape, stride = texts[values["wide"]]
        return tuple(shape), tuple(stride)
    ndim = values["ndim"]
    return tuple(values["shape"][:ndim].tolist()), tuple(values["stride"][:ndim].tolist())


def _read_statistics(values: Mapping[str, Any]) -> Statistics:
    return Statistics(*(values[field.name] for field in fields(Statistics)))


def call_row(call: Call, texts: TextWriter) -> Row:
    """One row of the table of calls, its fields in the order of :data:`layout.CALLS`."""
    return (
        call.step,
        call.micro,
        call.rank,
        texts.intern(call.scope),
        call.call,
        layout.PASSES.index(call.pass_),
        texts.intern(call.kind),
        call.identity,
        call.parent,
        call.enter,
        call.exit,
        call.leaf,
        call.training,
        call.grad_enabled,
        texts.intern(call.arguments),
        texts.intern(call.output),
        texts.intern(call.attributes),
        texts.intern(call.autocast),
        texts.intern(call.modes),
        texts.intern(call.source),
        texts.intern(call.error),
    )


def read_calls(table: Array, texts: TextReader) -> list[Call]:
    """All calls of one table."""
    names = table.dtype.names or ()
    interned = {name for name in names if layout.CALLS[name] == np.dtype("<u4")}
    calls = []
    for row in table.tolist():
        values = {name: texts[item] if name in interned else item for name, item in zip(names, row)}
        values["pass_"] = layout.PASSES[values["pass_"]]
        calls.append(Call(**values))
    return calls


def read_points(table: Array, texts: TextReader) -> list[Point]:
    """All points of one table, in the order they were put."""
    return [Point(step, micro, texts[name], value) for step, micro, name, value in table.tolist()]


def encode_info(info: RunInfo, notes: Sequence[str] = ()) -> str:
    """Run information as one line of JSON, with more notes behind its own."""
    merged = tuple(dict.fromkeys([*info.notes, *notes]))
    return encode_value({field.name: getattr(replace(info, notes=merged), field.name) for field in fields(info)})


def decode_info(text: str) -> RunInfo:
    """The inverse of :func:`encode_info`; unknown fields are left out. Raises ValueError, TypeError."""
    values = decode_value(text)
    if not isinstance(values, Mapping):
        raise ValueError("run information is not a JSON object")
    known = {field.name for field in fields(RunInfo)}
    return RunInfo(**{name: value for name, value in values.items() if name in known})
