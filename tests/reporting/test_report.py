"""Saving and loading: nothing is lost, and what is not a report says so."""

from __future__ import annotations

import errno
import json
import math
from dataclasses import fields
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from precision_align.core.errors import DumpDamaged, DumpForeign, DumpNotFound, SchemaTooNew, StorageFull, UsageError
from precision_align.core.results import Coverage, Curve, Findings, Limit, RecordResult
from precision_align.core.terms import Phase, Role, Site, Status, Verdict
from precision_align.reporting import serialization
from precision_align.reporting.report import Report, format_json


def test_report_round_trips_exactly(findings: ModuleType, tmp_path: Path) -> None:
    for report in (findings.make_diverged(), findings.make_aligned(), findings.make_empty()):
        assert Report.load(report.save(tmp_path / "report.json")) == report


def test_hostile_text_and_non_finite_numbers_round_trip(findings: ModuleType, tmp_path: Path) -> None:
    report = findings.make_hostile()
    loaded = Report.load(report.save(tmp_path / "report.json"))
    assert loaded.to_dict() == report.to_dict()
    assert loaded.first is not None
    assert loaded.first.scope == findings.HOSTILE
    assert math.isnan(loaded.first.metrics[findings.HOSTILE])
    assert loaded.first.metrics["z"] == math.inf
    assert math.isnan(loaded.reference["versions"]["torch"])
    assert loaded.curves[0].candidate[0][1] == math.inf


def test_saved_file_is_strict_json_with_a_version(findings: ModuleType, tmp_path: Path) -> None:
    text = findings.make_hostile().save(tmp_path / "r.json").read_text(encoding="ascii")

    def refuse(constant: str) -> Any:
        raise AssertionError(f"{constant} is not JSON")

    data = json.loads(text, parse_constant=refuse)
    assert (data["format"], data["schema_version"]) == (serialization.FORMAT, serialization.SCHEMA_VERSION)
    assert data["records"][0]["status"] == "fail"


def test_numpy_enums_and_paths_become_plain(findings: ModuleType) -> None:
    report = findings.make_aligned()
    values = {field.name: getattr(report, field.name) for field in fields(Findings)}
    values["reference"] = {
        "path": Path("a/b"),
        "level": np.float32(0.5),
        "count": np.int64(3),
        "role": Role.INPUT,
        "digest": b"\x01\xff",
        "shape": (1, 2),
        "flag": True,
        "nothing": None,
    }
    built = Report(**values)
    assert built.reference == {
        "path": "a/b",
        "level": 0.5,
        "count": 3,
        "role": "input",
        "digest": "01ff",
        "shape": [1, 2],
        "flag": True,
        "nothing": None,
    }
    assert Report.from_dict(json.loads(json.dumps(built.to_dict()))) == built


floats = st.floats(allow_nan=False)
texts = st.text(max_size=12)
records = st.builds(
    RecordResult,
    key=texts,
    scope=texts,
    site=st.sampled_from(Site),
    phase=st.sampled_from(Phase),
    role=st.sampled_from(Role),
    path=texts,
    call=st.integers(0, 9),
    step=st.integers(0, 2**40),
    micro=st.integers(0, 9),
    rank=st.integers(0, 9),
    op=texts,
    status=st.sampled_from(Status),
    evidence=texts,
    metrics=st.dictionaries(texts, floats, max_size=3),
    limit=st.none() | st.builds(Limit, texts, floats, texts),
    note=texts,
    nbytes=st.integers(0, 2**60),
    order=st.integers(0, 2**60),
    source=texts,
)
free = st.recursive(
    st.none() | st.booleans() | st.integers() | floats | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts.filter(lambda key: key != "$float"), inner),
    max_leaves=6,
)


@settings(max_examples=60, deadline=None)
@given(
    rows=st.lists(records, max_size=4),
    reference=st.dictionaries(texts, free, max_size=3),
    points=st.lists(st.tuples(st.integers(0, 99), floats), max_size=4),
    notes=st.lists(texts, max_size=3),
)
def test_any_findings_round_trip(
    rows: list[RecordResult], reference: dict[str, Any], points: list[tuple[int, float]], notes: list[str]
) -> None:
    report = Report(
        verdict=Verdict.ALIGNED,
        first=None,
        frontier=(),
        records=rows,
        notes=notes,
        coverage={Phase.STEP: Coverage(1, 1, 2, 2)},
        reference=reference,
        candidate={},
        curves=[Curve("loss", points, points[::-1], None, 0.5)],
    )
    assert Report.from_dict(json.loads(format_json(report))) == report


def test_missing_file_names_itself(tmp_path: Path) -> None:
    with pytest.raises(DumpNotFound, match=r"nope\.json: no such file"):
        Report.load(tmp_path / "nope.json")


def test_folder_is_not_a_report(tmp_path: Path) -> None:
    with pytest.raises(DumpForeign, match="is a folder"):
        Report.load(tmp_path)


@pytest.mark.parametrize("content", [b"", b"hello", b"\x89HDF\r\n\x1a\n\x00\xff", b"[1, 2]", b'{"a": 1}', b'"text"'])
def test_foreign_file_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(content)
    with pytest.raises(DumpForeign, match=r"x\.json"):
        Report.load(path)


def test_every_truncation_is_refused(findings: ModuleType, tmp_path: Path) -> None:
    whole = findings.make_diverged().save(tmp_path / "whole.json").read_bytes()
    cut = tmp_path / "cut.json"
    for length in range(1, len(whole) - 3, len(whole) // 60):
        cut.write_bytes(whole[:length])
        with pytest.raises(DumpDamaged, match="broken JSON"):
            Report.load(cut)


def test_a_report_of_schema_0_still_loads(findings: ModuleType) -> None:
    data = findings.make_diverged().to_dict()
    del data["error_maps"]
    assert Report.from_dict({**data, "schema_version": 0}) == findings.make_diverged(error_maps=[])


def test_newer_schema_says_upgrade(findings: ModuleType, tmp_path: Path) -> None:
    data = findings.make_aligned().to_dict()
    data["schema_version"] = serialization.SCHEMA_VERSION + 1
    data["records"] = {"a newer version": "may keep them otherwise"}
    path = tmp_path / "new.json"
    path.write_text(json.dumps(data), encoding="utf-8")
    with pytest.raises(SchemaTooNew, match="upgrade"):
        Report.load(path)


def drop(data: dict[str, Any], *place: Any) -> None:
    for part in place[:-1]:
        data = data[part]
    del data[place[-1]]


def put(data: dict[str, Any], value: Any, *place: Any) -> None:
    for part in place[:-1]:
        data = data[part]
    data[place[-1]] = value


@pytest.mark.parametrize(
    ("place", "value", "complaint"),
    [
        (("verdict",), None, "'verdict' is missing"),
        (("verdict",), "perfect", "verdict: 'perfect' is not a valid Verdict"),
        (("records",), {}, "records is not a list"),
        (("records", 3, "step"), None, r"records\[3\]: the field 'step' is missing"),
        (("records", 3, "step"), "7", r"records\[3\]: '7' is not a whole number"),
        (("records", 0, "metrics"), [1], r"records\[0\]"),
        (("records", 0, "metrics"), {"z": "high"}, r"records\[0\]: 'high' is not a number"),
        (("records", 1), 5, r"records\[1\]"),
        (("first", "scope"), None, "first: the field 'scope' is missing"),
        (("first", "explanations"), 3, "first"),
        (("coverage", "forward"), {"recorded": 1}, "coverage.forward"),
        (("curves", 0, "reference"), [[1]], r"curves\[0\]"),
        (("error_maps", 0, "cells"), [["x"]], r"error_maps\[0\]: 'x' is not a number"),
        (("error_maps", 0, "bounds"), [1.0], r"error_maps\[0\]"),
        (("error_maps", 0, "profiles"), [{}], r"error_maps\[0\]: the field 'dimension' is missing"),
        (("notes",), [None], r"notes\[0\]: None is not text"),
        (("schema_version",), "0", "schema_version"),
        (("reference",), [], "reference"),
    ],
)
def test_damage_names_its_place(findings: ModuleType, place: tuple[Any, ...], value: Any, complaint: str) -> None:
    data = findings.make_diverged().to_dict()
    if value is None:
        drop(data, *place)
    else:
        put(data, value, *place)
    with pytest.raises(DumpDamaged, match=complaint):
        Report.from_dict(data)


def test_unknown_suffix_lists_the_known(findings: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"\.json, \.html, \.md \(Markdown\), \.xml"):
        findings.make_aligned().save(tmp_path / "report.pdf")


def test_missing_folder_is_named(findings: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no folder"):
        findings.make_aligned().save(tmp_path / "a" / "r.json")


def test_full_disk_leaves_no_half_file(findings: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fill(self: Path, *_: Any, **__: Any) -> int:
        self.touch()
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", fill)
    with pytest.raises(StorageFull, match="no space left"):
        findings.make_aligned().save(tmp_path / "r.json")
    assert list(tmp_path.iterdir()) == []


def test_saving_replaces_the_old_file(findings: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    findings.make_diverged().save(path)
    findings.make_aligned().save(path)
    assert Report.load(path).verdict == Verdict.ALIGNED
    assert [child.name for child in tmp_path.iterdir()] == ["r.json"]


def test_printing_a_report_shows_the_first_screen(findings: ModuleType) -> None:
    report = findings.make_diverged()
    assert str(report).startswith("DIVERGED")
    assert repr(report) == "<Report verdict='diverged', first='transformer.h.0.attn', 176 records>"
