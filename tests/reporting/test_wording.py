"""Numbers, shares, names, mapping rows, run differences."""

from __future__ import annotations

import math
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from precision_align.core.results import Limit
from precision_align.core.terms import Status
from precision_align.reporting.columns import find_record, pack_records
from precision_align.reporting.wording import (
    compare_runs,
    describe_mapping,
    format_bytes,
    format_number,
    format_share,
    measure_excess,
    quote,
)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (1.0, "1"),
        (-0.5, "-0.5"),
        (1234.5, "1230"),
        (29_900.4, "29,900"),
        (7.47e8, "7.47e+08"),
        (1.23456e-7, "1.23e-07"),
        (0.00012345, "0.000123"),
        (math.nan, "NaN"),
        (math.inf, "Inf"),
        (-math.inf, "-Inf"),
    ],
)
def test_numbers(value: float, text: str) -> None:
    assert format_number(value) == text


@pytest.mark.parametrize(
    ("share", "text"),
    [(0, "0 %"), (1, "100 %"), (0.99999, "99.9 %"), (1e-6, "<0.1 %"), (0.5, "50 %"), (1.5, "150 %"), (math.nan, "? %")],
)
def test_shares_never_round_to_all_or_nothing(share: float, text: str) -> None:
    assert format_share(share) == text


@given(st.floats(0, 1, exclude_max=True))
def test_incomplete_is_never_called_complete(share: float) -> None:
    assert format_share(share) != "100 %"


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (2**40, "1.0 TiB"), (2**70, "1048576 PiB")]
)
def test_bytes(count: int, text: str) -> None:
    assert format_bytes(count) == text


@given(st.text())
def test_quoted_text_is_one_printable_line(text: str) -> None:
    shown = quote(text)
    assert shown.isprintable()
    assert not set(shown) & set("\u202a\u202e\u2066\u2069")


@pytest.mark.parametrize(
    ("metrics", "limit", "excess"),
    [
        ({"z": 8.0}, Limit("z", 4.0, ""), 2.0),
        ({"bias": -0.2}, Limit("bias", 0.1, ""), 2.0),
        ({"mismatched": 0.1}, Limit("mismatched", 0.0, ""), math.inf),
        ({"mismatched": 0.0}, Limit("mismatched", 0.0, ""), 0.0),
        ({"z": 8.0}, Limit("rho", 4.0, ""), None),
        ({"z": 8.0}, None, None),
    ],
)
def test_excess(metrics: dict[str, float], limit: Limit | None, excess: float | None) -> None:
    assert measure_excess(metrics, limit) == excess


def test_mapping_row_of_the_library(findings: ModuleType) -> None:
    row = describe_mapping(findings.MAPPING)
    assert row.identity == "attention"
    assert row.title == "flash_attn.flash_attn_func → torch_npu.npu_fusion_attention(input_layout='BSND')"
    assert [(case.name, case.status) for case in row.cases] == [
        ("attention/causal_sq_lt_skv", "fail"),
        ("attention/causal_square", "pass"),
        ("attention/fully_masked_row", ""),
    ]
    assert len(row.pitfalls) == 3
    assert ("versions", "since: 2.1.0.post8, cann: 8.0.RC3 or later") in row.facts
    assert not {"modules", "calls", "inputs", "cases", "results"} & {name for name, _ in row.facts}


@pytest.mark.parametrize(
    "mapping",
    [{}, {"op": None}, {"cases": None, "pitfalls": "one"}, {"cases": {"a": "fail"}}, {"cases": [{}]}, {"symbols": []}],
)
def test_mapping_row_of_any_shape(mapping: dict[str, Any]) -> None:
    row = describe_mapping(mapping)
    assert all(isinstance(part, str) for part in (row.identity, row.title, *row.pitfalls))


def test_worst_result_of_a_case_is_shown() -> None:
    results = [{"case": "a", "status": status, "note": status} for status in ("pass", "fail", "pass")]
    row = describe_mapping({"op": "x", "cases": ["a"], "results": results})
    assert [(case.name, case.status, case.failed) for case in row.cases] == [("a", "fail", True)]
    assert row.cases[0].note == "fail (1 of 3 results fail)"
    (single,) = describe_mapping({"op": "x", "cases": ["a"], "results": results[1:2]}).cases
    assert single.note == "fail"


def test_runs_are_compared_field_by_field() -> None:
    left = {
        "run": "a",
        "device": "cuda",
        "versions": {"torch": "2.5"},
        "modules": {f"m{n}": "Linear" for n in range(3000)},
    }
    right = {
        "run": "b",
        "device": "npu",
        "versions": {"torch": "2.5", "cann": "8"},
        "modules": {**left["modules"], "m7": "Other"},
    }  # type: ignore[dict-item]
    rows = compare_runs(left, right)
    assert rows == [
        ("device", "cuda", "npu"),
        ("versions.cann", "", "8"),
        ("modules.m7", "Linear", "Other"),
        ("versions.torch", "2.5", "2.5"),
        ("modules", "3000", "3000"),
        ("run", "a", "b"),
    ]


def test_origin_is_found_by_key_then_by_place(findings: ModuleType) -> None:
    report = findings.make_diverged()
    assert find_record(report, report.first) == 3
    assert find_record(report, findings.make_divergence(key="unknown")) == 3
    assert find_record(report, findings.make_divergence("elsewhere", key="unknown")) is None
    assert find_record(report, None) is None


def test_columns_hold_every_row(findings: ModuleType) -> None:
    report = findings.make_diverged()
    packed = pack_records(report.records)

    def read(name: str, row: int) -> Any:
        column = packed["columns"][name]
        return column["all"] if isinstance(column, dict) else column[row]

    for row, record in enumerate(report.records):
        assert packed["texts"][read("scope", row)] == record.scope
        assert packed["statuses"][read("status", row)] == record.status
        assert packed["columns"]["key"][row] == record.key
        names = packed["metric_names"][read("names", row)]
        assert dict(zip(names, packed["columns"]["values"][row], strict=True)) == pytest.approx(
            dict(record.metrics), rel=1e-5
        )
    assert pack_records([])["count"] == 0


def test_columns_of_one_repeated_row_stay_short(findings: ModuleType) -> None:
    records = [findings.make_record("a", Status.PASS, order) for order in range(500)]
    packed = pack_records(records)
    assert packed["columns"]["scope"] == {"all": 0}
    assert packed["columns"]["order"] == list(range(500))
