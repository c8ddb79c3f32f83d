"""Records, calls and points as table rows, and back; run information as JSON, and back."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from functools import cache, lru_cache
from operator import itemgetter
from typing import Any, NamedTuple, Union

import numpy as np

from precision_align.core.dtypes import Array
from precision_align.core.keys import Key
from precision_align.core.records import Call, Point, RunInfo, Statistics, TensorRecord
from precision_align.core.terms import Tier
from precision_align.storage import layout
from precision_align.storage.drafts import DeferredCall, DeferredDraft, Form
from precision_align.storage.entries import Entry, find_dtype
from precision_align.storage.texts import TextReader, TextWriter, decode_value, encode_value

Row = tuple[Any, ...]
_NO_DIMS = (0,) * layout.MAX_DIMS
_NO_STATISTICS = (0, 0, 0, 0, 0, 0.0, 0.0, 0.0, 0.0)
_TIER_NUMBERS = {tier: number for number, tier in enumerate(layout.TIERS)}
# One row of layout.INDEX, in three pieces: packing it at once is cheaper than a tuple that waits for the table, and a
# fifth of its size; the middle piece is the same for all tensors of one form.
_HEAD = struct.Struct("<4qH4sBHHB")
_DIMS = struct.Struct("<8q8q")
_TAIL = struct.Struct("<3q16s5q4dqI6I")


class Placement(NamedTuple):
    """Where a file keeps what belongs to a record; a length of None: not stored. Bytes for the payload, elements for
    the sketch."""

    offset: int = 0
    stored: int | None = None
    expanded: int = 0
    sketch_offset: int = 0
    sketch_length: int | None = None


def index_row(entry: Entry, place: Placement, texts: TextWriter) -> bytes:
    """One packed row of the index. Raises struct.error where a number does not fit into its column."""
    source = entry.source
    key: Union[DeferredDraft, Key]
    form: Union[Form, TensorRecord]
    if isinstance(source, DeferredDraft):
        key, form, rank = source, source.copy.form, source.slot.rank
    else:
        key, form, rank = source.key, source, source.key.rank
    extra = entry.extra
    code, word = _describe_dtype(form.dtype)
    shape, stride = form.shape, form.stride
    wide = len(shape) > layout.MAX_DIMS or len(stride) != len(shape)
    flags = layout.REQUIRES_GRAD if form.requires_grad else 0
    if entry.digest:
        flags |= layout.HAS_DIGEST
    if entry.values is not None:
        flags |= layout.HAS_STATISTICS
    if place.stored is not None:
        flags |= layout.HAS_PAYLOAD
    if place.sketch_length is not None:
        flags |= layout.HAS_SAMPLE if entry.tier is Tier.SAMPLE else layout.HAS_SKETCH
    tier = _TIER_NUMBERS[entry.tier]
    head = _HEAD.pack(key.step, key.micro, rank, source.order, code, word, tier, flags, len(shape), place.expanded)
    tail = _TAIL.pack(
        place.offset,
        place.stored or 0,
        entry.nbytes,
        entry.digest,
        *(entry.values or _NO_STATISTICS),
        place.sketch_offset,
        place.sketch_length or 0,
        *texts.intern_several((form.dtype, form.layout, form.device, entry.reason)),
        texts.intern(extra) if extra else 0,
        texts.intern([list(shape), list(stride)]) if wide else 0,
    )
    return b"".join((head, _pack_dims(shape, stride), tail))


@lru_cache(maxsize=1 << 12)
def _pack_dims(shape: tuple[int, ...], stride: tuple[int, ...]) -> bytes:
    return _DIMS.pack(*_fit(shape), *_fit(stride))


@cache
def _describe_dtype(name: str) -> tuple[int, bytes]:
    dtype = find_dtype(name)
    return (dtype.code, dtype.word.encode("ascii")) if dtype else (0, b"")


def _fit(sizes: tuple[int, ...]) -> tuple[int, ...]:
    return (*sizes, *_NO_DIMS[len(sizes) :])[: layout.MAX_DIMS]


def read_index(rows: bytes | bytearray) -> Array:
    """Packed rows as one structured array that may be changed."""
    return np.frombuffer(bytearray(rows), dtype=layout.INDEX)


def strip_payloads(index: Array, reason: int) -> None:
    """Let the rows forget their payloads; ``reason``: the number of a text."""
    stored = (index["flags"] & layout.HAS_PAYLOAD) != 0
    index["flags"][stored] &= 0xFFFF ^ layout.HAS_PAYLOAD
    index["tier"][stored] = layout.TIERS.index(Tier.STATISTICS)
    index["reason"][stored] = reason
    for name in ("offset", "stored", "expanded"):
        index[name][stored] = 0


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


def call_row(call: Call | DeferredCall, texts: TextWriter) -> Row:
    """One row of the table of calls, its fields in the order of :data:`layout.CALLS`."""
    values = list(call.values if isinstance(call, DeferredCall) else vars(call).values())
    for column in _CALL_TEXTS:
        values[column] = texts.intern(values[column])
    values[_CALL_PASS] = layout.PASSES.index(values[_CALL_PASS])
    return tuple(values)


# The fields of a call are the columns of its table.
_CALL_TEXTS = [place for place, name in enumerate(layout.CALLS.names or ()) if layout.CALLS[name] == np.dtype("<u4")]
_CALL_PASS = (layout.CALLS.names or ()).index("pass_")


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
