"""Whatever is put comes back bit for bit, from HDF5 and from memory alike."""

from __future__ import annotations

import json
import math
import tempfile
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from precision_align.core.dtypes import DTYPES, Array, dtype_of
from precision_align.core.keys import Key
from precision_align.core.records import Call, Point, RunInfo, TensorRecord
from precision_align.core.terms import Pass, Phase, Role, Source, Tier
from precision_align.numerics.sketches import sketch
from precision_align.storage.base import Draft
from precision_align.storage.hashing import digest_words
from precision_align.storage.hdf5 import Hdf5Sink
from precision_align.storage.memory import MemorySink
from precision_align.storage.opening import open_dump
from precision_align.storage.texts import decode_value, encode_value

INFO = RunInfo("run-1", "2026-11-29T00:00:00+00:00", 0, 1, "cpu")

any_text = st.text(st.characters(), max_size=20)  # lone surrogates included
weird_text = st.one_of(
    any_text,
    st.sampled_from(["", "/", "%", "%2F", "a/b%c", "\0", "x\ny\r\n", "层.注意力", "\ud800", "\u2028", "|", "." * 5000]),
)
any_float = st.floats(allow_nan=True, allow_infinity=True)
big_int = st.integers(-(2**63), 2**63 - 1)
json_like = st.recursive(
    st.one_of(st.none(), st.booleans(), big_int, any_float, weird_text, st.binary(max_size=4)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.one_of(weird_text, st.sampled_from(["$float", "$tuple", "$"])), inner, max_size=3),
    ),
    max_leaves=8,
)
mappings = st.dictionaries(weird_text, json_like, max_size=3)

keys = st.builds(
    Key,
    step=st.integers(-3, 10**9),
    micro=st.integers(0, 3),
    rank=st.integers(0, 2),
    source=st.sampled_from(Source),
    scope=weird_text,
    call=st.integers(0, 2**40),
    pass_=st.sampled_from(Pass),
    op=weird_text,
    ordinal=st.integers(0, 9),
    phase=st.sampled_from(Phase),
    role=st.sampled_from(Role),
    path=weird_text,
)


@st.composite
def drafts(draw: st.DrawFn) -> Draft:
    """A record of any dtype and shape with random bits, or one whose values could not be had."""
    name = draw(st.sampled_from([*DTYPES, "float4_e2m1fn_x2", "uint4"]))
    shape = tuple(draw(st.lists(st.integers(0, 4), max_size=5)))
    shape = draw(st.sampled_from([shape, (2,) * 10, (1,) * 12, ()]))
    stride = draw(
        st.one_of(
            st.just(tuple(np.zeros(shape, np.uint8).strides)),
            st.lists(st.integers(-5, 50), max_size=3).map(tuple),
            st.just((0,) * len(shape)),
        )
    )
    record = TensorRecord(
        key=draw(keys),
        dtype=name,
        shape=shape,
        stride=stride,
        layout=draw(weird_text),
        device=draw(weird_text),
        requires_grad=draw(st.booleans()),
        order=draw(big_int),
        tier=draw(st.sampled_from(Tier)),
        reason=draw(st.one_of(st.just(""), weird_text)),
        extra=draw(mappings),
    )
    if name not in DTYPES or draw(st.booleans()):
        return Draft(record, None)
    return Draft(record, _random_words(name, shape, draw(st.integers(0, 2**32 - 1)), draw(st.booleans())))


def _random_words(name: str, shape: tuple[int, ...], seed: int, constant: bool) -> Array:
    word = np.dtype(dtype_of(name).word)
    size = math.prod(shape)
    raw = np.random.default_rng(seed).integers(0, 2 if name == "bool" else 256, size * word.itemsize, dtype=np.uint8)
    words = raw.view(word).reshape(shape)
    if constant and size:
        words[...] = words.reshape(-1)[0]
    return words


def same(a: Any, b: Any) -> bool:
    """Equality that also holds for NaN and tells 0.0 from -0.0 and a list from a tuple."""
    return encode_value(a) == encode_value(b)


def assert_same_record(found: TensorRecord, expected: TensorRecord) -> None:
    for field in fields(TensorRecord):
        first, second = getattr(found, field.name), getattr(expected, field.name)
        if field.name == "statistics" and first is not None and second is not None:
            first, second = vars(first), vars(second)
        assert same(first, second), field.name


@settings(max_examples=60, deadline=None)
@given(st.lists(drafts(), max_size=6, unique_by=lambda draft: str(draft.record.key)))
def test_every_record_and_payload_comes_back(items: list[Draft]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        sink, memory = Hdf5Sink(Path(folder) / "d", INFO), MemorySink(INFO)
        for item in items:
            sink.put(item)
            memory.put(item)
        sink.close(INFO)
        with open_dump(Path(folder) / "d") as found:
            kept = memory.dump()
            assert not found.notes
            assert len(found.records) == len(kept.records) == len(items)
            for record, twin in zip(found.records, kept.records):
                assert_same_record(record, twin)
            for item in items:
                _check_item(found, item)
                _check_item(kept, item)


def _check_item(dump: Any, item: Draft) -> None:
    record = dump.get(item.record.key)
    assert record.key == item.record.key
    assert dump.find(str(item.record.key)) is record
    kept = ("dtype", "shape", "stride", "layout", "device", "requires_grad", "order", "extra")
    for name in kept:
        assert same(getattr(record, name), getattr(item.record, name)), name
    if item.words is None:
        assert record.tier is Tier.FINGERPRINT
        assert record.digest == b""
        assert record.reason
        return
    assert record.digest == digest_words(item.words)
    assert record.nbytes == item.words.nbytes
    if item.record.tier is Tier.FULL:
        assert record.tier is Tier.FULL
    if record.tier is Tier.FULL:
        words = dump.payload(record.key)
        assert words.dtype == item.words.dtype
        assert words.shape == item.words.shape
        assert words.tobytes() == item.words.tobytes()
        assert dump.sketch(record.key).tobytes() == sketch(item.words, dtype_of(record.dtype)).tobytes()
    else:
        with pytest.raises(KeyError, match=str(record.tier)):
            dump.payload(record.key)


trees = st.fixed_dictionaries({"kind": st.just("scalar"), "value": json_like})
calls = st.builds(
    Call,
    step=st.integers(0, 3),
    micro=st.integers(0, 3),
    rank=st.just(0),
    scope=weird_text,
    call=st.integers(0, 9),
    pass_=st.sampled_from(Pass),
    kind=weird_text,
    identity=st.integers(0, 2**62),
    parent=st.integers(-1, 9),
    enter=big_int,
    exit=big_int,
    leaf=st.booleans(),
    training=st.booleans(),
    grad_enabled=st.booleans(),
    arguments=trees,
    output=trees,
    attributes=st.one_of(st.none(), trees),
    autocast=st.dictionaries(weird_text, weird_text, max_size=2),
    modes=mappings,
    source=weird_text,
    error=weird_text,
)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(calls, max_size=5, unique_by=lambda call: (call.step, call.identity)),
    st.lists(
        st.builds(Point, st.integers(0, 5), st.integers(0, 2), weird_text, any_float),
        max_size=6,
        unique_by=lambda point: (point.step, point.micro, point.name),
    ),
    st.lists(weird_text, max_size=3, unique=True),
)
def test_calls_series_and_notes_come_back(items: list[Call], points: list[Point], notes: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        sink, memory = Hdf5Sink(Path(folder) / "d", INFO), MemorySink(INFO)
        for target in (sink, memory):
            for call in items:
                target.put_call(call)
            for point in points:
                target.put_point(point)
            for note in notes:
                target.note(note)
            target.close(INFO)
        for found in (open_dump(Path(folder) / "d"), memory.dump()):
            assert list(found.notes) == notes
            wanted = sorted(items, key=lambda call: (call.rank, call.step, call.exit))
            assert same([vars(call) for call in found.calls], [vars(call) for call in wanted])
            ordered = sorted(points, key=lambda point: (point.step, point.micro))
            assert same([vars(point) for point in found.series], [vars(point) for point in ordered])


@settings(deadline=None)
@given(json_like)
def test_any_plain_value_survives_json(value: Any) -> None:
    text = encode_value(value)
    json.loads(text, parse_constant=lambda name: pytest.fail(f"bare {name} in JSON"))
    assert same(decode_value(text), value)


@settings(max_examples=30, deadline=None)
@given(
    st.builds(
        RunInfo,
        run=weird_text,
        created=weird_text,
        rank=st.integers(0, 99999),
        world=st.integers(1, 9),
        device=weird_text,
        versions=st.dictionaries(weird_text, weird_text, max_size=3),
        capture=mappings,
        modules=st.dictionaries(weird_text, weird_text, max_size=3),
        aliases=st.dictionaries(weird_text, st.lists(weird_text, max_size=2), max_size=2),
        parameters=st.dictionaries(weird_text, st.lists(weird_text, max_size=2), max_size=2),
        optimizer=mappings,
        command=weird_text,
        forced=st.booleans(),
        notes=st.lists(weird_text, max_size=3, unique=True).map(tuple),
    )
)
def test_run_information_comes_back_exactly(info: RunInfo) -> None:
    with tempfile.TemporaryDirectory() as folder:
        sink = Hdf5Sink(Path(folder) / "d", info)
        key = Key(0, 0, 0, Source.MODULE, "", 0, Pass.FIRST, "", 0, Phase.FORWARD, Role.OUTPUT, "")
        sink.put(
            Draft(
                TensorRecord(key, "float32", (), (), "strided", "cpu", False, 0, Tier.FULL),
                np.ones((), np.float32),
            )
        )
        sink.close(info)
        assert same(vars(open_dump(Path(folder) / "d").info), vars(info))
        (part,) = (Path(folder) / "d").glob("rank*/*.h5")
        assert same(vars(open_dump(part).info), vars(info))
