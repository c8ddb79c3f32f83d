"""Records, calls and points as table rows, and back; run information as JSON, and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from operator import itemgetter
from typing import Any

import numpy as np

from precision_align.core.dtypes import Array
from precision_align.core.keys import Key
from precision_align.core.records import Call, Point, RunInfo, Statistics, TensorRecord
from precision_align.core.terms import Tier
from precision_align.storage import layout
from precision_align.storage.drafts import DeferredCall
from precision_align.storage.texts import TextReader, TextWriter, decode_value, encode_value

Row = tuple[Any, ...]


def strip_payloads(index: Array, reason: int) -> None:
    """Let the rows forget their payloads; ``reason``: the number of a text."""
    stored = (index["flags"] & layout.HAS_PAYLOAD) != 0
    index["flags"][stored] &= 0xFFFF ^ layout.HAS_PAYLOAD
    index["tier"][stored] = layout.TIERS.index(Tier.STATISTICS)
    index["reason"][stored] = reason
    for name in ("offset", "stored", "expanded"):
        index[name][stored] = 0


def fill_table(rows: Sequence[Row], dtype: np.dtype[Any]) -> Array:
    """Rows as one structured array. Raises OverflowError where a number does not fit into its column.

    Filled column by column, which is several times cheaper than row by row.
    """
    table = np.zeros(len(rows), dtype=dtype)
    for name, column in zip(dtype.names or (), zip(*rows)):
        table[name] = column
    return table


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
        statistics=Statistics(*_get_statistics(values)) if flags & layout.HAS_STATISTICS else None,
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


_get_statistics = itemgetter(*(field.name for field in fields(Statistics)))


def fill_calls(calls: Sequence[Call | DeferredCall], texts: TextWriter) -> Array:
    """The rows of the table of calls. Raises OverflowError where a number does not fit into its column."""
    # the fields of a call are the columns of its table
    values = zip(*[call.values if isinstance(call, DeferredCall) else vars(call).values() for call in calls])
    table = np.zeros(len(calls), dtype=layout.CALLS)
    for name, column in zip(layout.CALLS.names or (), values):
        if name == "pass_":
            table[name] = list(map(layout.PASSES.index, column))
        else:
            table[name] = texts.intern_all(column) if layout.CALLS[name] == np.dtype("<u4") else column
    return table


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
