"""Whatever is put comes back bit for bit, from HDF5 and from memory alike."""

from __future__ import annotations

import json
import math
import tempfile
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from precision_align.core.dtypes import DTYPES, Array, dtype_of
from precision_align.core.keys import Key
from precision_align.core.records import Call, Point, RunInfo, TensorRecord
from precision_align.core.terms import Pass, Phase, Role, Source, Tier
from precision_align.numerics.sketches import sketch
from precision_align.storage import hdf5
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
        sink.put_point(Point(0, 0, "loss", 1.0))
        sink.close(info)
        assert same(vars(open_dump(Path(folder) / "d").info), vars(info))
        (part,) = (Path(folder) / "d").glob("rank*/*.h5")
        assert same(vars(open_dump(part).info), vars(info))


def test_a_tensor_can_be_read_with_h5py_alone(tmp_path: Path, make_draft: Any, make_words: Any) -> None:
    """Runs the three lines that the writer's documentation promises."""
    sink = Hdf5Sink(tmp_path / "d", INFO)
    items = [
        make_draft(make_words(name, shape, seed), name, order=seed, key={"scope": f"层/{name}\n{seed}"})
        for seed, (name, shape) in enumerate(
            [("float32", (3, 5)), ("bfloat16", (7,)), ("bool", ()), ("complex64", (0, 4)), ("float8_e5m2", (2, 2))]
        )
    ]
    for item in items:
        sink.put(item)
    sink.close(INFO)
    snippet = [line[4:] for line in (hdf5.__doc__ or "").split("\n") if line.startswith("    ")]
    assert len(snippet) == 3
    (path,) = (tmp_path / "d").glob("rank*/*.h5")
    for item in items:
        with h5py.File(path) as file:
            names: dict[str, Any] = {"file": file, "key": str(item.record.key)}
            exec("\n".join(snippet), names)
        assert names["words"].tobytes() == item.words.tobytes()
        assert names["words"].shape == item.words.shape


def test_equal_payloads_are_stored_once(tmp_path: Path, make_draft: Any) -> None:
    words = np.random.default_rng(0).standard_normal(1 << 16).astype(np.float32)
    sink = Hdf5Sink(tmp_path / "d", INFO)
    for number in range(20):
        shape = (1 << 8, 1 << 8) if number % 2 else (1 << 16,)
        sink.put(make_draft(words.reshape(shape).copy(), key={"call": number}))
    sink.close(INFO)
    (path,) = (tmp_path / "d").glob("rank*/*.h5")
    assert path.stat().st_size < 2 * words.nbytes
    with open_dump(tmp_path / "d") as dump:
        assert all(dump.payload(record.key).tobytes() == words.tobytes() for record in dump.records)


def test_expanded_dimensions_are_stored_once(tmp_path: Path, make_draft: Any) -> None:
    row = np.random.default_rng(0).standard_normal((1, 64)).astype(np.float32)
    wide = np.broadcast_to(row, (4096, 64))
    honest = make_draft(np.ascontiguousarray(wide), stride=(0, 1), key={"scope": "honest"})
    view = make_draft(wide, stride=(0, 1), key={"scope": "view"})
    other = np.random.default_rng(1).standard_normal((8, 64)).astype(np.float32)
    lying = make_draft(other, stride=(0, 1), key={"scope": "lying"})
    sink = Hdf5Sink(tmp_path / "d", INFO)
    for item in (honest, view, lying):
        sink.put(item)
    sink.close(INFO)
    (path,) = (tmp_path / "d").glob("rank*/*.h5")
    assert path.stat().st_size < wide.nbytes // 8
    with open_dump(tmp_path / "d") as dump:
        assert dump.payload(honest.record.key).tobytes() == wide.tobytes()
        assert dump.payload(view.record.key).flags.writeable
        assert dump.payload(lying.record.key).tobytes() == other.tobytes()
        assert dump.get(honest.record.key).digest == dump.get(view.record.key).digest


def test_what_each_tier_keeps(tmp_path: Path, make_draft: Any) -> None:
    words = np.random.default_rng(0).standard_normal(4096).astype(np.float32)
    sink = Hdf5Sink(tmp_path / "d", INFO)
    for tier in Tier:
        sink.put(make_draft(words.copy(), tier=tier, key={"scope": str(tier)}))
    sink.close(INFO)
    with open_dump(tmp_path / "d") as dump:
        found = {record.key.scope: record for record in dump.records}
        assert found["fingerprint"].statistics is None
        assert found["fingerprint"].digest == found["full"].digest
        assert found["statistics"].statistics == found["full"].statistics
        assert dump.sketch(found["statistics"].key) is None
        assert dump.sketch(found["sketch"].key).tobytes() == dump.sketch(found["full"].key).tobytes()
        assert found["sample"].tier is Tier.SKETCH
        assert "sample" in found["sample"].reason
        with pytest.raises(KeyError, match="only sketch"):
            dump.payload(found["sketch"].key)


def test_small_tensors_of_the_sketch_tier_are_stored_whole(tmp_path: Path, make_draft: Any) -> None:
    sink = Hdf5Sink(tmp_path / "d", INFO)
    small = make_draft(np.arange(1023, dtype=np.float32), tier=Tier.SKETCH)
    sink.put(small)
    sink.close(INFO)
    with open_dump(tmp_path / "d") as dump:
        assert dump.get(small.record.key).tier is Tier.FULL
        assert dump.payload(small.record.key).tobytes() == small.words.tobytes()


@pytest.mark.parametrize(
    ("words", "dtype", "reason"),
    [
        (np.zeros(3, np.float32), "bfloat16", "words of type float32"),
        (np.zeros((2, 3), np.float32), "float32", "words of shape"),
        (np.zeros(3, np.uint8), "bits1x8", "no raw-word form"),
        (None, "float32", "no values"),
    ],
)
def test_unusable_words_leave_a_reason(tmp_path: Path, make_draft: Any, words: Any, dtype: str, reason: str) -> None:
    sink = Hdf5Sink(tmp_path / "d", INFO)
    item = make_draft(words, dtype, shape=(3,), stride=(1,))
    sink.put(item)
    sink.close(INFO)
    with open_dump(tmp_path / "d") as dump:
        assert reason in dump.get(item.record.key).reason
        with pytest.raises(KeyError, match="only fingerprint"):
            dump.payload(item.record.key)


def test_words_in_a_sibling_type_are_reinterpreted(tmp_path: Path, make_draft: Any) -> None:
    words = np.array([1.5, -2.0], np.float32)
    sink = Hdf5Sink(tmp_path / "d", INFO)
    item = make_draft(words.view(np.int32), "torch.float32")
    sink.put(item)
    sink.close(INFO)
    with open_dump(tmp_path / "d") as dump:
        assert dump.payload(item.record.key).tolist() == [1.5, -2.0]
        assert dump.values(item.record.key).dtype == np.float32


def test_values_widen_low_precision(tmp_path: Path, make_draft: Any) -> None:
    sink = Hdf5Sink(tmp_path / "d", INFO)
    item = make_draft(np.array([0x3F80, 0xC000], np.uint16), "bfloat16")
    sink.put(item)
    sink.close(INFO)
    with open_dump(tmp_path / "d") as dump:
        assert dump.values(item.record.key).tolist() == [1.0, -2.0]


def test_payloads_across_chunks_and_parts(tmp_path: Path, make_draft: Any) -> None:
    """Tensors larger than a chunk, unaligned sizes, and a part limit that splits one step."""
    generator = np.random.default_rng(0)
    sizes = [3 << 20, 1, (1 << 20) - 64, 65, (2 << 20) + 7, 1 << 20, 5]
    items = [
        make_draft(generator.integers(0, 256, size, dtype=np.uint8), "uint8", order=number, key={"call": number})
        for number, size in enumerate(sizes)
    ]
    sink = Hdf5Sink(tmp_path / "d", INFO, part_bytes=4 << 20, queue_bytes=1 << 20)
    for item in items:
        sink.put(item)
    sink.end_step(0)
    sink.close(INFO)
    names = sorted(path.name for path in (tmp_path / "d").glob("rank*/*.h5"))
    assert names == [f"step00000000-00000000.part{number:03d}.h5" for number in range(2)]
    with open_dump(tmp_path / "d") as dump:
        assert not dump.notes
        assert [record.order for record in dump.records] == list(range(len(sizes)))
        for item in items:
            assert dump.payload(item.record.key).tobytes() == item.words.tobytes()


def test_the_readers_arrays_may_be_changed(make_draft: Any) -> None:
    memory = MemorySink(INFO)
    item = make_draft(np.arange(4, dtype=np.float32))
    memory.put(item)
    dump = memory.dump()
    dump.payload(item.record.key)[:] = 7
    assert dump.payload(item.record.key).tolist() == [0, 1, 2, 3]


def test_a_key_recorded_twice_shows_its_last_value_and_a_note(tmp_path: Path, make_draft: Any) -> None:
    sink = Hdf5Sink(tmp_path / "d", INFO)
    first, second = make_draft(np.zeros(2, np.float32)), make_draft(np.ones(2, np.float32))
    sink.put(first)
    sink.end_step(0)
    sink.put(replace(second, record=replace(second.record, order=5)))
    sink.close(INFO)
    with open_dump(tmp_path / "d") as dump:
        assert len(dump.records) == 1
        assert dump.payload(first.record.key).tolist() == [1, 1]
        assert "more than once" in dump.notes[0]
