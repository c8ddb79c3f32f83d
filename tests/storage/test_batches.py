"""Tensors that are written by the batch: the same as those that are taken one by one, with and without a compiler."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from precision_align.core.dtypes import DTYPES, Array
from precision_align.core.records import TensorRecord
from precision_align.core.terms import Tier
from precision_align.numerics.summaries import VARIABLE, load_summaries
from precision_align.storage.base import Draft
from precision_align.storage.drafts import DeferredCall, DeferredDraft, Form, Slot, Summary
from precision_align.storage.hashing import digest_words
from precision_align.storage.hdf5 import Hdf5Sink
from precision_align.storage.memory import MemorySink
from precision_align.storage.opening import open_dump


class Copied:
    """What a recorder hands over; like an object made in C it cannot be referred to weakly."""

    __slots__ = ("address", "form", "parts", "summary", "words")

    def __init__(self, form: Form, words: Array | None, summary: Summary | None = None, *, plain: bool = True) -> None:
        self.form, self.words, self.parts, self.summary = form, words, (), summary
        self.address = words.__array_interface__["data"][0] if words is not None and plain else 0


def defer(draft: Draft, copy: Copied | None = None, *, plain: bool = True) -> DeferredDraft:
    """The same as a recorder hands it over."""
    record, key = draft.record, draft.record.key
    if copy is None:
        names = ("dtype", "shape", "stride", "layout", "device", "requires_grad")
        nbytes = 0 if draft.words is None else draft.words.nbytes
        form = Form(**{name: getattr(record, name) for name in names}, nbytes=nbytes)
        copy = Copied(form, draft.words, plain=plain)
    names = ("rank", "source", "scope", "call", "pass_", "op", "ordinal", "phase", "role", "path")
    slot = Slot(**{name: getattr(key, name) for name in names}, extra=record.extra)
    return DeferredDraft(slot, key.step, key.micro, record.order, record.tier, record.reason, copy)


def make_all(make_draft: Any, make_words: Any) -> list[Draft]:
    """Every dtype, shape and tier, dimensions that repeat, and tensors without words."""
    drafts: list[Draft] = []

    def add(words: Array | None, dtype: str, **changes: Any) -> None:
        number = len(drafts)
        extra = {"shared": True} if number % 3 == 0 else {}
        drafts.append(make_draft(words, dtype, key={"call": number}, order=number, extra=extra, **changes))

    for dtype in DTYPES:
        for shape in ((), (0,), (5,), (2,) * 9, (41, 50), (130, 160)):
            for tier in Tier:
                add(make_words(dtype, shape, len(drafts)), dtype, tier=tier, reason="so" if tier is Tier.FULL else "")
    add(None, "float32", shape=(7,), reason="not on this device")
    add(np.repeat(np.arange(30, dtype=np.float32), 100).reshape(30, 100), "float32", stride=(1, 0))
    add(np.full(3, 1e-200), "float64")
    return drafts


def same_records(first: TensorRecord, second: TensorRecord) -> None:
    for field in fields(TensorRecord):
        a, b = getattr(first, field.name), getattr(second, field.name)
        if field.name == "statistics" and a is not None and b is not None:
            np.testing.assert_allclose(list(vars(a).values()), list(vars(b).values()), rtol=1e-12)
        else:
            assert a == b, field.name


@pytest.fixture(params=["compiled", "numpy"])
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv(VARIABLE, request.param)
    load_summaries.cache_clear()
    yield request.param
    monkeypatch.undo()
    load_summaries.cache_clear()


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize("plain", [True, False])
def test_a_batch_is_written_like_single_tensors(
    tmp_path: Path, make_info: Any, make_draft: Any, make_words: Any, make_call: Any, plain: bool
) -> None:
    drafts = make_all(make_draft, make_words)
    sink, memory = Hdf5Sink(tmp_path / "d", make_info()), MemorySink(make_info())
    items: list[Any] = [defer(draft, plain=plain) for draft in drafts]
    calls = [make_call(scope=f"m{number}", identity=number, exit=number) for number in range(20)]
    items[5:5] = [DeferredCall(tuple(vars(call).values())) for call in calls]
    sink.put_many(items, 1 << 20)
    sink.close(make_info())
    for draft in drafts:
        memory.put(draft)
    expected = memory.dump()
    with open_dump(tmp_path / "d") as dump:
        assert not dump.notes
        assert dump.calls == calls
        assert len(dump.records) == len(expected.records) == len(drafts)
        for record, twin in zip(dump.records, expected.records):
            same_records(record, twin)
            if record.tier is Tier.FULL:
                assert dump.payload(record.key).tobytes() == expected.payload(record.key).tobytes()
            for kept in ("sketch", "sample"):
                np.testing.assert_array_equal(getattr(dump, kept)(record.key), getattr(expected, kept)(record.key))


def read_tables(folder: Path) -> tuple[dict[str, str], Array]:
    (path,) = folder.rglob("*.h5")
    with h5py.File(path) as file:
        return json.loads(file.attrs["digests"]), np.concatenate([file["index"][:], file["index"][:0]])


def test_a_file_has_the_same_bytes_however_its_tensors_came(
    tmp_path: Path, make_info: Any, make_draft: Any, make_words: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In batches of any size, with a compiler or without: but for the last bits of sums."""
    drafts = make_all(make_draft, make_words)
    for name, kernel, size in (("a", "compiled", 1000), ("b", "compiled", 7), ("c", "numpy", 50)):
        monkeypatch.setenv(VARIABLE, kernel)
        load_summaries.cache_clear()
        sink = Hdf5Sink(tmp_path / name, make_info())
        for start in range(0, len(drafts), size):
            sink.put_many([defer(draft) for draft in drafts[start : start + size]], 1 << 20)
            sink.flush()
        sink.close(make_info())
    monkeypatch.undo()
    load_summaries.cache_clear()
    tables = [read_tables(tmp_path / name) for name in "abc"]
    assert tables[0][0] == tables[1][0]
    first, other = (dict(digests) for digests, _ in (tables[0], tables[2]))
    assert first.pop("index") != other.pop("index")
    assert first == other
    for column in set(tables[0][1].dtype.names) - {"mean", "l2"}:
        np.testing.assert_array_equal(tables[0][1][column], tables[2][1][column])


def test_a_copy_that_comes_again_later_is_as_it_was(tmp_path: Path, make_info: Any, make_draft: Any) -> None:
    words = np.random.default_rng(0).standard_normal(1 << 16).astype(np.float32)
    sink = Hdf5Sink(tmp_path / "d", make_info())
    first = defer(make_draft(words))
    for number, tier in enumerate([Tier.FULL, Tier.STATISTICS, Tier.SKETCH, Tier.SKETCH, Tier.SAMPLE]):
        draft = make_draft(words, key={"call": number}, order=number, tier=tier)
        sink.put_many([defer(draft, first.copy)], words.nbytes)  # type: ignore[arg-type]
        sink.flush()
    sink.close(make_info())
    with open_dump(tmp_path / "d") as dump:
        assert {record.digest for record in dump.records} == {digest_words(words)}
        assert len({record.statistics for record in dump.records}) == 1
        for record in dump.records[2:4]:
            np.testing.assert_array_equal(dump.sketch(record.key), dump.sketch(dump.records[0].key))


def test_what_a_device_has_summarized_is_written_as_it_is(tmp_path: Path, make_info: Any, make_draft: Any) -> None:
    form = Form("float32", (3,), (1,), "strided", "npu:0", False, 12)
    values = (3, 0, 0, 0, 0, 1.0, 3.0, 2.0, 14**0.5)
    found = Summary(b"d" * 16, values, np.arange(127.0))
    lost = Summary(reason="the device was lost")
    sink = Hdf5Sink(tmp_path / "d", make_info())
    items = []
    for number, (tier, summary) in enumerate([(Tier.SKETCH, found), (Tier.STATISTICS, found), (Tier.SKETCH, lost)]):
        draft = make_draft(None, shape=(3,), key={"call": number}, order=number, tier=tier)
        items.append(defer(replace(draft, record=replace(draft.record, device="npu:0")), Copied(form, None, summary)))
    sink.put_many(items, 0)
    sink.close(make_info())
    with open_dump(tmp_path / "d") as dump:
        assert [record.tier for record in dump.records] == [Tier.SKETCH, Tier.STATISTICS, Tier.FINGERPRINT]
        assert [record.digest for record in dump.records] == [b"d" * 16, b"d" * 16, b""]
        assert tuple(vars(dump.records[1].statistics).values()) == values
        np.testing.assert_array_equal(dump.sketch(dump.records[0].key), np.arange(127.0))
        assert dump.sketch(dump.records[1].key) is None
        assert dump.records[2].reason == "the device was lost"
        assert dump.records[2].statistics is None


def test_an_item_that_makes_no_sense_costs_itself_only(
    tmp_path: Path, make_info: Any, make_draft: Any, make_call: Any
) -> None:
    good = [defer(make_draft(np.full(4, number, np.float32), key={"call": number}, order=number)) for number in (0, 1)]
    wide = defer(make_draft(np.zeros(4, np.float32), key={"call": 2}, order=1 << 70))
    calls = [make_call(scope="a"), make_call(scope="b", enter=1 << 70)]
    sink = Hdf5Sink(tmp_path / "d", make_info())
    sink.put_many([good[0], wide, object(), calls[1], good[1], calls[0]], 64)  # type: ignore[list-item]
    sink.close(make_info())
    with open_dump(tmp_path / "d") as dump:
        assert [record.key.call for record in dump.records] == [0, 1]
        assert [call.scope for call in dump.calls] == ["a"]
        assert len(dump.notes) == 3
