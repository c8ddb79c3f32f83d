"""The generated mapping table is committed and current; checks between rows and cases find what is wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from precision_align.library.checking import check_library
from precision_align.library.folders import find_folders
from precision_align.library.loading import load_library
from precision_align.library.tables import render_json, render_list, render_markdown, render_row

REPORTS = Path(__file__).resolve().parents[2] / "reports"


@pytest.mark.parametrize(("name", "render"), [("mapping.md", render_markdown), ("mapping.json", render_json)])
def test_the_committed_table_is_current(name: str, render: object) -> None:
    assert callable(render)
    committed = (REPORTS / name).read_text(encoding="utf-8")
    assert committed == render(load_library().rows), "run: precision-align map build"


def test_the_bundled_library_checks_clean() -> None:
    result = check_library(find_folders())
    assert result.problems == ()
    assert result.notes == ()
    assert result.cases >= 100
    assert result.rows >= 199
    assert sum(result.untested.values()) < result.rows


FACTS = {f"M{number:03d}" for number in range(1, 200)}
UNVERIFIED = {
    "M006", "M013", "M014", "M023", "M027", "M035", "M046", "M049", "M096", "M114", "M135", "M160", "M161", "M185",
    "M187", "M194", "M198", "M199",
}  # fmt: skip


def test_every_fact_is_a_row_and_nothing_unverified_is_called_verified() -> None:
    rows = {row.id: row for row in load_library().rows}
    assert rows.keys() >= FACTS
    assert {id_ for id_, row in rows.items() if row.status == "unverified"} >= UNVERIFIED
    for id_ in FACTS - UNVERIFIED:
        assert rows[id_].status == "verified"
        assert all(evidence.where != "none" for evidence in rows[id_].evidence), id_


def test_texts_of_rows_are_sentences() -> None:
    for row in load_library().rows:
        for text in row.differences:
            assert text[-1] in ".?!", (row.id, text)
        assert "  " not in row.function + row.replacement, row.id
        assert row.rule is None or row.rule.reason.endswith("."), row.id


def test_the_json_table_holds_every_row_with_its_selectors() -> None:
    rows = json.loads(render_json(load_library().rows))["rows"]
    assert len(rows) == len(load_library().rows)
    assert all(case.startswith(f"{row['op']}/") for row in rows for case in row["cases"])
    assert all(bool(row["cases"]) != bool(row["untested"]) for row in rows)
    assert all("file" not in row for row in rows)


def test_markdown_cells_keep_their_columns() -> None:
    lines = [line for line in render_markdown(load_library().rows).splitlines() if line.startswith("| M")]
    assert len(lines) == len(load_library().rows)
    assert len({line.replace("\\|", "").count("|") for line in lines}) == 1


def test_a_row_in_full_says_what_to_run() -> None:
    (row,) = (row for row in load_library().rows if row.id == "M003")
    text = render_row(row)
    assert "precision-align case run 'attention/causal-bottom-right-*'" in text
    assert "scale is 1.0 by default" in text
    assert row.id in render_list([row])


ROWS = """
schema_version = 1
[[row]]
id = "X1"
symbols = ["a.b"]
function = "2 x"
kind = "native"
replacement = "none"
status = "verified"
evidence = [{ where = "here", on = "CPU" }]
rule = { name = "exact", reason = "a test" }
cases = ["plain", "absent-*"]
boundaries = [{ value = "zero", cases = ["zero"] }]
"""
CASES = """
import torch
from precision_align.library.cases import OpCase, Operator

def make(seed):
    return {"x": torch.ones(3)}

OPERATOR = Operator(
    "twice", [OpCase("plain", make), OpCase("unclaimed", make)], natives=[lambda x: x * 2],
    golden=lambda x: x.double() * 2, replacements={"torch": lambda x: x + x},
)
"""


def test_check_reports_everything_between_rows_and_cases_at_once(tmp_path: Path) -> None:
    folder = tmp_path / "twice"
    folder.mkdir()
    (folder / "mapping.toml").write_text(ROWS + "colour = 1\n")
    (folder / "cases.py").write_text(CASES)
    for name in ("alone", "broken"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "cases.py").write_text(CASES.replace("twice", name) if name == "alone" else "1 / 0")
    (tmp_path / "paper").mkdir()
    (tmp_path / "paper" / "mapping.toml").write_text(ROWS.replace("X1", "X2"))
    text = "\n".join(check_library(find_folders(tmp_path)).problems)
    for expected in (
        "row X1: colour: unknown key",
        "row X1: cases: 'absent-*' finds no case of twice",
        "row X1: cases: 'zero' finds no case of twice",
        "row X1: rule: is 'exact', cases.py judges by 'double standard'",
        "case unclaimed: no row names it",
        "alone: has cases, but mapping.toml has no row",
        "raised ZeroDivisionError",
        "row X2: cases: paper/cases.py does not exist",
    ):
        assert expected in text, expected


def test_check_asks_for_cases_goldens_and_operators_that_exist(tmp_path: Path) -> None:
    rows = ROWS.replace("rule = ", "# rule = ").replace('cases = ["plain", "absent-*"]', "").split("boundaries")[0]
    (tmp_path / "op_cases" / "twice").mkdir(parents=True)
    functions = tmp_path / "golden" / "functions"
    functions.mkdir(parents=True)
    (functions / "stray.py").write_text("")
    file = tmp_path / "op_cases" / "twice" / "mapping.toml"
    file.write_text(
        rows.replace('"none"', '"torch_npu.npu_clipped_swiglu(x) or torch_npu.npu_no_such(x)"')
        + 'versions = { since = ["2.7.1"] }\ngolden = "absent"\nuntested = " "\n'
    )
    text = "\n".join(check_library(find_folders(tmp_path)).problems)
    for expected in (
        "row X1: cases: are missing: name those that prove the row, or say in `untested`",
        "torch_npu.npu_no_such is in none of the releases read",
        "versions: torch_npu 2.7.1 has no npu_clipped_swiglu",
        "golden/functions/absent.py does not exist",
        "golden/functions/stray.py: no operator is called so",
    ):
        assert expected in text, expected
    file.write_text(rows + 'cases = ["a"]\nuntested = "why"\n')
    assert "untested: contradicts `cases`" in "\n".join(check_library(find_folders(tmp_path)).problems)
