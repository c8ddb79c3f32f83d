"""The dump in memory, and JSON of values that are not plain."""

from __future__ import annotations

import enum
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from precision_align.core.errors import DumpError
from precision_align.core.records import Point
from precision_align.core.terms import Tier
from precision_align.storage.memory import MemorySink
from precision_align.storage.texts import TextReader, TextWriter, decode_value, encode_value


def test_a_sink_without_information_has_no_dump_before_it_is_closed(make_info: Any) -> None:
    sink = MemorySink()
    with pytest.raises(DumpError):
        sink.dump()
    sink.close(make_info(notes=("own",)))
    assert sink.dump().info == make_info(notes=("own",))


def test_order_steps_and_ranks(make_draft: Any, make_info: Any, make_call: Any) -> None:
    sink = MemorySink(make_info())
    for step, rank, order in [(1, 0, 5), (0, 1, 1), (0, 0, 9), (0, 0, 2)]:
        sink.put(make_draft(np.zeros(1, np.float32), order=order, key={"step": step, "rank": rank, "call": order}))
    sink.put_call(make_call(step=7, exit=2))
    sink.put_call(make_call(step=0, exit=4, identity=1))
    for step, value in [(1, 1.0), (0, 2.0), (1, 3.0)]:
        sink.put_point(Point(step, 0, "loss", value))
    sink.note("twice")
    sink.note("twice")
    sink.end_step(1)
    with sink.dump() as dump:
        assert [(r.key.rank, r.key.step, r.order) for r in dump.records] == [(0, 0, 2), (0, 0, 9), (0, 1, 5), (1, 0, 1)]
        assert (dump.steps, dump.ranks) == ([0, 1, 7], [0, 1])
        assert [call.step for call in dump.calls] == [0, 7]
        assert [(point.step, point.value) for point in dump.series] == [(0, 2.0), (1, 3.0)]
        assert dump.notes == ["twice"]
        assert list(dump.infos) == [dump.info]


def test_equal_payloads_share_memory(make_draft: Any, make_info: Any) -> None:
    sink = MemorySink(make_info())
    for call in range(3):
        sink.put(make_draft(np.arange(6, dtype=np.float32).reshape(2, 3), key={"call": call}))
    first, *others = (entry.words for entry in sink._entries)
    assert all(np.shares_memory(first, other) for other in others)


def test_unknown_keys(make_key: Any, make_draft: Any, make_info: Any) -> None:
    sink = MemorySink(make_info())
    sink.put(make_draft(np.zeros(4096, np.float32), tier=Tier.STATISTICS))
    dump = sink.dump()
    for look in (dump.get, dump.payload, dump.values, dump.sketch):
        with pytest.raises(KeyError):
            look(make_key(scope="elsewhere"))
    with pytest.raises(KeyError):
        dump.find("nonsense")
    assert dump.sketch(make_key()) is None


class Colour(enum.Enum):
    RED = 1


def test_values_beyond_json() -> None:
    value = {
        "array": np.arange(3),
        "scalar": np.float32(0.5),
        "nan": np.float64("nan"),
        "flag": np.bool_(True),
        "path": Path("a"),
        "enum": Colour.RED,
        "term": Tier.FULL,
        "set": {3},
        3: "number",
    }
    found = decode_value(encode_value(value))
    assert math.isnan(found.pop("nan"))
    assert found == {
        "array": [0, 1, 2],
        "scalar": 0.5,
        "flag": True,
        "path": "a",
        "enum": "Colour.RED",
        "term": "full",
        "set": [3],
        "3": "number",
    }


def test_texts_are_interned() -> None:
    writer = TextWriter()
    numbers = [writer.intern(value) for value in ("cpu", {"a": (1,)}, None, "cpu", {"a": (1,)}, "null", "a\nb")]
    assert numbers == [1, 2, 0, 1, 2, 3, 4]
    reader = TextReader(writer.to_bytes())
    assert [reader[number] for number in range(5)] == [None, "cpu", {"a": (1,)}, "null", "a\nb"]
