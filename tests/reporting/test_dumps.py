"""A dump in words: trees, tables, histograms, damaged and missing values."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from precision_align.core.errors import DumpDamaged
from precision_align.core.keys import Key
from precision_align.core.records import Call, RunInfo, Statistics, TensorRecord
from precision_align.core.terms import Pass, Phase, Role, Source, Tier
from precision_align.reporting.dumps import (
    describe_dump,
    describe_tensor,
    measure_histogram,
    render_calls,
    render_dump,
    render_histogram,
    render_records,
    render_tensor,
)
from precision_align.reporting.terminal import measure_width


def make_record(scope: str = "a.b", **changes: Any) -> TensorRecord:
    key = Key(0, 0, 0, Source.MODULE, scope, 0, Pass.FIRST, "", 0, Phase.FORWARD, Role.OUTPUT, "")
    found = Statistics(6, 1, 2, 1, 0, -1.0, 2.5, 0.25, 3.0)
    values: dict[str, Any] = {
        "key": key,
        "dtype": "float32",
        "shape": (2, 3),
        "stride": (3, 1),
        "layout": "strided",
        "device": "npu:0",
        "requires_grad": True,
        "order": 1,
        "tier": Tier.FULL,
        "digest": b"\x01\x02",
        "statistics": found,
        "nbytes": 24,
    }
    return TensorRecord(**{**values, **changes})


def make_call(scope: str, identity: int, parent: int, enter: int, **changes: Any) -> Call:
    tree = {"kind": "scalar", "value": None}
    values: dict[str, Any] = {
        "step": 0,
        "micro": 0,
        "rank": 0,
        "scope": scope,
        "call": 0,
        "pass_": Pass.FIRST,
        "kind": "torch.nn.Linear",
        "identity": identity,
        "parent": parent,
        "enter": enter,
        "exit": enter + 1,
        "leaf": True,
        "training": True,
        "grad_enabled": True,
        "arguments": tree,
        "output": tree,
    }
    return Call(**{**values, **changes})


@dataclass
class Recorded:
    """Just enough of a dump."""

    records: list[TensorRecord]
    calls: list[Call] = field(default_factory=list)
    tensors: dict[Key, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    series: list[Any] = field(default_factory=list)

    @property
    def info(self) -> RunInfo:
        return RunInfo("run", "2026-11-29", 0, 1, "npu:0", versions={"torch": "2.5"}, command="train.py --x \x1b[31m")

    @property
    def infos(self) -> list[RunInfo]:
        return [self.info]

    def values(self, key: Key) -> Any:
        found = self.tensors[key]
        if isinstance(found, Exception):
            raise found
        return found


def make_dump(records: list[TensorRecord], **more: Any) -> Any:
    return Recorded(records, **more)


def test_overview_has_no_control_characters_and_fits() -> None:
    records = [make_record(f"encoder.layers.{n}.\x1b[31m\n{'long' * 9}", shape=(1,) * 9) for n in range(60)]
    text = render_dump(make_dump(records, notes=["gap \x07"] * 7), records, width=80, limit=10)
    assert "\x1b" not in text
    assert "… 50 more; --limit 0 shows all" in text
    assert max(measure_width(line) for line in text.splitlines()) <= 80


@pytest.mark.parametrize("width", [60, 80, 120])
def test_table_columns_line_up(width: int) -> None:
    lines = render_records([make_record("a"), make_record("b" * 200), make_record("c", statistics=None)], width)
    assert max(map(len, lines)) <= width
    assert lines[1].endswith("3")  # one NaN and two infinities


def test_calls_are_a_tree_in_order_of_entry() -> None:
    calls = [
        make_call("a.x", 2, 1, 2),
        make_call("b", 3, 0, 5),
        make_call("a", 1, 0, 1),
        make_call("", 0, -1, 0, kind="train.Net"),
        make_call("lost", 9, 77, 9, error="ValueError: no"),
    ]
    assert list(render_calls(calls, 80)) == [
        "  (root)  Net",
        "    a  Linear",
        "      a.x  Linear",
        "    b  Linear",
        "  lost  Linear raised ValueError: no",
    ]


def test_deep_trees_do_not_recurse() -> None:
    calls = [make_call("m", identity, identity - 1, identity) for identity in range(5000)]
    assert len(list(render_calls(calls, 80))) == 5000


def test_tensor_with_values() -> None:
    record = make_record()
    values = np.array([[np.nan, np.inf, 0], [-1, 2.5, -np.inf]], dtype=np.float32)
    dump = make_dump([record], tensors={record.key: values})
    text = render_tensor(dump, record)
    assert "1 nan, 2 inf, 1 zero" in text
    assert "nan  inf  0  -1  2.5  -inf" in text
    described = describe_tensor(dump, record)
    assert json.loads(json.dumps(described, allow_nan=False))["values"][0] == {"$float": "NaN"}
    assert sum(described["histogram"]["counts"]) == 3


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (KeyError("x"), "only its statistics was recorded"),
        (DumpDamaged("its hash does not fit"), "its hash does not fit"),
    ],
)
def test_tensor_without_values_says_why(found: Exception, said: str) -> None:
    record = make_record(tier=Tier.STATISTICS)
    dump = make_dump([record], tensors={record.key: found})
    assert said in render_tensor(dump, record)
    assert said in describe_tensor(dump, record)["missing"]


def test_reason_of_a_missing_payload_is_shown() -> None:
    record = make_record(tier=Tier.STATISTICS, reason="budget of 1 GiB spent")
    assert "budget of 1 GiB spent" in render_tensor(make_dump([record]), record)


@pytest.mark.parametrize(
    "values",
    [
        np.zeros((0, 3)),
        np.float32(3.5).reshape(()),
        np.array([True, False, True]),
        np.array([2**62, -(2**62)], dtype=np.int64),
        np.array([1 + 2j, np.nan + 0j]),
        np.array([np.finfo(np.float64).max, np.finfo(np.float64).min]),
        np.full(4, np.nan),
        np.array([5e-324, 0.0]),
    ],
)
def test_histogram_of_any_dtype(values: Any) -> None:
    record = make_record()
    text = render_tensor(make_dump([record], tensors={record.key: values}), record)
    counts, _ = measure_histogram(values)
    assert counts.sum() == np.isfinite(values).sum()
    assert ("no finite value" in text) == (counts.size == 0)


@given(arrays.arrays(np.float64, st.integers(0, 50)))
def test_histogram_counts_every_finite_value(values: Any) -> None:
    counts, edges = measure_histogram(values)
    assert counts.sum() == np.isfinite(values).sum()
    lines = render_histogram(counts, edges, width=60)
    assert all(("█" in line) == (int(line.split()[-1].replace(",", "")) > 0) for line in lines if "│" in line)


def test_json_of_a_dump_is_plain() -> None:
    record = replace(make_record(), extra={"scale": np.float32(0.5), "parts": (1, 2)})
    described = describe_dump(make_dump([record], calls=[make_call("a", 0, -1, 0)]), [record])
    data = json.loads(json.dumps(described, allow_nan=False))
    assert data["records"][0]["extra"] == {"scale": 0.5, "parts": [1, 2]}
    assert data["records"][0]["digest"] == "0102"
    assert data["steps"] == [0]
