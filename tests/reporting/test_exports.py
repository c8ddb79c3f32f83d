"""JUnit and Markdown: valid, complete, and safe whatever a name contains."""

from __future__ import annotations

import csv
import io
import math
import re
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from types import ModuleType

import openpyxl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from precision_align.core.errors import Unavailable, UsageError
from precision_align.core.terms import Kind, Status
from precision_align.reporting import sheets
from precision_align.reporting.junit import render_junit
from precision_align.reporting.languages import say
from precision_align.reporting.markdown import escape, render_markdown
from precision_align.reporting.sheets import render_csv


def test_junit_counts_what_it_holds(findings: ModuleType) -> None:
    suite = ElementTree.fromstring(render_junit(findings.make_diverged()))[0]
    cases = suite.findall("testcase")
    assert int(suite.get("tests", "")) == len(cases) == 1 + 2 * 44
    assert int(suite.get("failures", "")) == len(suite.findall("testcase/failure")) == 2
    assert int(suite.get("skipped", "")) == len(suite.findall("testcase/skipped")) == 1
    failed = [case.get("name") for case in cases if case.find("failure") is not None]
    assert failed == ["verdict", "transformer.h.0.attn"]
    assert "52.9x the limit" in str(suite.find("testcase[@name='transformer.h.0.attn']/failure").get("message"))  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("make", "tag"), [("make_aligned", None), ("make_empty", "error"), ("make_diverged", "failure")]
)
def test_junit_verdict(findings: ModuleType, make: str, tag: str | None) -> None:
    verdict = ElementTree.fromstring(render_junit(getattr(findings, make)()))[0][0]
    assert verdict.get("name") == "verdict"
    assert [child.tag for child in verdict] == ([tag] if tag else [])


def test_junit_missing_records_fail(findings: ModuleType) -> None:
    records = [findings.make_record("a", Status.MISSING), findings.make_record("a", Status.PASS, 1)]
    suite = ElementTree.fromstring(render_junit(findings.make_diverged(records=records)))[0]
    assert suite.find("testcase[@name='a']/failure") is not None


def test_junit_fails_at_an_undeclared_mode_and_not_at_a_declared_one(findings: ModuleType) -> None:
    records = [findings.make_record(name, Status.MODE, order) for order, name in enumerate(("undeclared", "declared"))]
    found = findings.make_divergence("undeclared", kind=Kind.MODE, key=records[0].key)
    suite = ElementTree.fromstring(
        render_junit(findings.make_diverged(records=records, first=found, frontier=[found]))
    )[0]
    failed = [case.get("name") for case in suite.findall("testcase") if case.find("failure") is not None]
    assert failed == ["verdict", "undeclared"]


@given(st.text())
def test_junit_survives_any_text(text: str) -> None:
    import reporting_findings as findings  # loaded by the fixture of the tests above

    record = findings.make_record(text, Status.FAIL, note=text, path=text)
    ElementTree.fromstring(render_junit(findings.make_diverged(records=[record], notes=[text])))


@pytest.fixture(autouse=True)
def _load(findings: ModuleType) -> None:
    assert findings.make_diverged is not None


@pytest.mark.parametrize("language", ["en", "zh"])
def test_markdown_tells_the_story(findings: ModuleType, language: str) -> None:
    text = render_markdown(findings.make_diverged(), language=language)
    for part in ("`transformer.h.0.attn`", "`/workspace/nanogpt/model.py:57`", "top-left", "95.4 %", "```sh"):
        assert part in text
    assert "{" not in re.sub(r"`[^`]*`", "", text)
    failed = f"| {say(language, 'status.fail')} | `transformer"
    widths = [line.count("|") for block in text.split("\n\n") for line in block.splitlines() if line.startswith(failed)]
    assert len(set(widths)) == 1


def test_markdown_of_hostile_names_has_no_markup(findings: ModuleType) -> None:
    text = render_markdown(findings.make_hostile())
    unescaped = re.sub(r"\\.", "", text)
    outside_code = re.sub(r"(?<!`)(`+)(?!`).*?(?<!`)\1(?!`)", "", unescaped, flags=re.DOTALL)
    assert "## Diverged" in outside_code
    assert not re.search(r"<[a-z/!]", outside_code)
    assert "\x1b" not in text


@given(st.text())
def test_markdown_escape_leaves_no_active_character(text: str) -> None:
    escaped = escape(text)
    assert "\n" not in escaped
    assert not re.search(r"(?<!\\)(?:\\\\)*[<>`*|\[\]]", escaped)
    assert not re.search(r"@[a-z]", escaped)


def test_csv_has_a_line_a_record_and_a_column_a_metric(findings: ModuleType) -> None:
    report = findings.make_diverged()
    rows = list(csv.DictReader(io.StringIO(render_csv(report).removeprefix("\ufeff"))))
    assert len(rows) == len(report.records)
    for row, record in zip(rows, report.records, strict=True):
        assert (row["scope"], row["status"], int(row["step"])) == (record.scope, record.status, record.step)
        found = {name: float(row[name]) for name in ("z", "rho", "rel_l2", "raw_rel_l2") if row[name]}
        assert found == record.metrics
    assert float(rows[3]["of_limit"]) == pytest.approx(211.7 / 4)


@pytest.mark.parametrize("text", ["=1+1", "@SUM(A1)", "-2", "+3", "=cmd|' /C calc'!A0"])
def test_csv_text_never_runs_as_a_formula(findings: ModuleType, text: str) -> None:
    record = findings.make_record(text, Status.FAIL, op=text, note=text, path=text, metrics={text: -1.0})
    lines = list(csv.reader(io.StringIO(render_csv(findings.make_diverged(records=[record])).removeprefix("\ufeff"))))
    assert not [cell for line in lines for cell in line if cell.startswith(("=", "@", "+", "-")) and cell != "-1.0"]


def test_workbook_is_the_table_and_no_text_is_a_formula(findings: ModuleType, tmp_path: Path) -> None:
    texts = ["=1+1", "@SUM(A1)", "-2", "#N/A", "=cmd|' /C calc'!A0", "\x1b[31m", "plain"]
    records = [
        findings.make_record(text, Status.FAIL, op=text, note=text, metrics={"z": math.nan, "=a": math.inf, "b": 0.5})
        for text in texts
    ]
    report = findings.make_diverged(records=records)
    book = openpyxl.load_workbook(report.save(tmp_path / "r.xlsx"))
    sheet = book.active
    cells = [cell for row in sheet.iter_rows() for cell in row]
    assert not {cell.data_type for cell in cells} & {"f", "e"}
    head, *rows = ([cell.value for cell in row] for row in sheet.iter_rows())
    assert [row[head.index("note")] for row in rows] == [*texts[:5], "\\x1b[31m", "plain"]
    assert {(row[head.index("z")], row[head.index("=a")], row[head.index("b")]) for row in rows} == {
        ("NaN", "Inf", 0.5)
    }
    assert head == next(csv.reader(io.StringIO(render_csv(report).removeprefix("\ufeff").replace("'=a", "=a"))))
    assert (sheet.freeze_panes, sheet.auto_filter.ref.split(":")[0]) == ("A2", "A1")


def test_workbook_says_what_it_lacks(findings: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sheets, "_SHEET_ROWS", 100)
    with pytest.raises(UsageError, match="176 records are more than an Excel sheet holds"):
        sheets.render_xlsx(findings.make_diverged())
    monkeypatch.setitem(sys.modules, "openpyxl", None)
    with pytest.raises(Unavailable, match=r"pip install 'precision-align\[xlsx\]'"):
        sheets.render_xlsx(findings.make_diverged())


@given(st.text())
def test_csv_keeps_its_shape_whatever_the_text(text: str) -> None:
    import reporting_findings as findings

    record = findings.make_record(text, Status.FAIL, note=text, path=text)
    lines = list(csv.reader(io.StringIO(render_csv(findings.make_diverged(records=[record, record])))))
    assert [len(line) for line in lines] == [len(lines[0])] * 3
