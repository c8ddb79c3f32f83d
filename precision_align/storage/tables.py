"""Records, calls and points as table rows, and back; run information as JSON, and back."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
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


def fit_index(index: Array) -> memoryview:
    """The rows of an index as the bytes that :func:`read_record` takes; a copy only where a file has other columns.

    Raises ValueError or KeyError where columns are missing or do not fit.
    """
    if index.dtype != layout.INDEX or index.ndim != 1:
        fitting = np.zeros(len(index), dtype=layout.INDEX)
        for name in layout.INDEX.names or ():
            fitting[name] = index[name]
        index = fitting
    return np.ascontiguousarray(index).view(np.uint8).data


_RECORD_COLUMNS = ("order", "tier", "flags", "ndim", "shape", "stride", "nbytes", "digest")
_TEXT_COLUMNS = ("dtype_name", "layout", "device", "reason", "extra", "wide")
_STATISTICS = tuple(field.name for field in fields(Statistics))
_FORMATS = {"<i8": "q", "<u4": "I", "<u2": "H", "|u1": "B", "<f8": "d"}


def _describe_row(names: Sequence[str]) -> struct.Struct:
    """Reads these columns of an index row, eight times as fast as NumPy makes Python values of one row."""
    parts = []
    for name in layout.INDEX.names or ():
        dtype = layout.INDEX[name]
        if name not in names:
            parts.append(f"{dtype.itemsize}x")
        elif name == "digest":
            parts.append(f"{dtype.itemsize}s")
        else:
            parts.append(_FORMATS[dtype.base.str] * (dtype.itemsize // dtype.base.itemsize))
    return struct.Struct("<" + "".join(parts))


_unpack_row = _describe_row((*_RECORD_COLUMNS, *_STATISTICS, *_TEXT_COLUMNS)).unpack_from


def read_record(rows: memoryview, row: int, key: str, texts: TextReader) -> TensorRecord:
    """The record of one row of an index (see :func:`fit_index`). Raises ValueError, KeyError or IndexError on nonsense.

    A row stands as: order, tier, flags, ndim, 8 of shape, 8 of stride, nbytes, digest, 9 statistics, 6 texts.
    """
    values = _unpack_row(rows, row * layout.INDEX.itemsize)
    order, tier, flags, ndim = values[:4]
    nbytes, digest = values[20:22]
    dtype, form, device, reason, extra, wide = values[31:]
    if wide:
        shape, stride = map(tuple, texts[wide])
    else:
        ndim = min(ndim, layout.MAX_DIMS)
        shape, stride = values[4 : 4 + ndim], values[12 : 12 + ndim]
    return TensorRecord(
        Key.parse(key),
        texts[dtype],
        shape,
        stride,
        texts[form],
        texts[device],
        bool(flags & layout.REQUIRES_GRAD),
        order,
        layout.TIERS[tier],
        digest if flags & layout.HAS_DIGEST else b"",
        Statistics(*values[22:31]) if flags & layout.HAS_STATISTICS else None,
        nbytes,
        texts[reason],
        texts[extra] or {},
    )


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
