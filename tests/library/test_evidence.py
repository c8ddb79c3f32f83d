"""The evidence store: what a run leaves, when it is stale, and a folder of a team's own replacements."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from precision_align.core.errors import RuleError, UsageError
from precision_align.library.checking import check_library
from precision_align.library.evidence import (
    Proof,
    collect_proofs,
    digest_operator,
    find_installed,
    find_stale,
    read_store,
    record_proofs,
    render_store,
)
from precision_align.library.folders import Folders, find_folders
from precision_align.library.runner import run_cases

CASES = """
import torch
from precision_align.library.cases import OpCase, Operator

def make(seed):
    return {"x": torch.ones(3)}

OPERATOR = Operator(
    "twice", [OpCase("plain", make), OpCase("other", make)], natives=[lambda x: x * 2],
    golden=lambda x: x.double() * 2, replacements={"torch": lambda x: x + x},
)
"""
ROW = """schema_version = 1
[[row]]
id = "X1"
symbols = ["a.b"]
function = "2 x"
kind = "native"
replacement = "none"
status = "verified"
evidence = [{ where = "here", on = "CPU" }]
rule = { name = "double standard", reason = "A test." }
cases = ["*"]
"""


@pytest.fixture
def folders(tmp_path: Path) -> Folders:
    folder = tmp_path / "op_cases" / "twice"
    folder.mkdir(parents=True)
    (folder / "cases.py").write_text(CASES)
    (folder / "mapping.toml").write_text(ROW)
    return find_folders(tmp_path)


def prove(folders: Folders, select: str = "*", replacement: Any = None) -> list[Proof]:
    report = run_cases(select, library=folders.cases.parent, replacement=replacement)
    return collect_proofs(report, folders, {"twice": 2}, "2026-11-30")


def test_a_run_leaves_counts_versions_and_what_failed(folders: Folders, tmp_path: Path) -> None:
    (good,) = prove(folders)
    assert (good.cases, good.known, good.passed, good.day) == (2, 2, True, "2026-11-30")
    assert good.counts == {"pass": 6}
    assert good.versions["torch"]
    (bad,) = prove(folders, replacement=lambda x: x)
    assert (bad.failed, bad.passed) == (("other", "plain"), False)
    store = tmp_path / "new" / "evidence.json"
    assert record_proofs(store, [good, bad]) == 2
    assert record_proofs(store, [good]) == 2
    assert read_store(store) == sorted([good, bad], key=lambda proof: proof.key)
    table = render_store(read_store(store))
    assert "| twice | cpu | torch | 2 / 2 | 6 pass | none | 2026-11-30 |" in table
    assert "other, plain" in table


def test_a_run_of_fewer_cases_takes_nothing_from_a_fuller_one_unless_it_fails(folders: Folders, tmp_path: Path) -> None:
    store = tmp_path / "evidence.json"
    record_proofs(store, prove(folders))
    record_proofs(store, prove(folders, "twice/plain"))
    assert read_store(store)[0].cases == 2
    failed = dataclasses.replace(prove(folders, "twice/plain")[0], failed=("plain",))
    record_proofs(store, [failed])
    assert read_store(store)[0].failed == ("plain",)


@pytest.mark.parametrize(
    ("file", "old", "new", "stale"),
    [
        ("cases.py", "x * 2", "2 * x", True),
        ("mapping.toml", 'replacement = "none"', 'replacement = "x + x"', True),
        ("mapping.toml", 'function = "2 x"', 'function = "x + x"', False),
    ],
)
def test_evidence_is_stale_when_what_was_tested_has_changed(
    folders: Folders, file: str, old: str, new: str, stale: bool
) -> None:
    proofs = prove(folders)
    assert find_stale(proofs, folders, {}) == []
    path = folders.cases / "twice" / file
    path.write_text(path.read_text().replace(old, new))
    found = find_stale(proofs, folders, {})
    assert bool(found) == stale
    assert not stale or "is older than the operator's last change" in found[0]
    assert bool(check_library(folders, proofs).problems) == stale


def test_evidence_of_an_npu_is_stale_under_another_torch_npu_or_cann(folders: Folders) -> None:
    versions = {"torch_npu": "2.9.0", "cann": "8.5.0"}
    digest = digest_operator(folders, "twice")
    proof = Proof("twice", "npu", "torch_npu", "2026-11-30", 2, 2, {"pass": 6}, (), versions, digest)
    assert find_stale([proof], folders, versions) == []
    assert find_stale([proof], folders, {}) == []
    (problem,) = find_stale([proof], folders, {"torch_npu": "2.9.0.post9", "cann": "8.5.0"})
    assert "torch_npu 2.9.0 -> 2.9.0.post9" in problem
    assert find_stale([dataclasses.replace(proof, device="cpu")], folders, {"torch_npu": "3"}) == []
    (gone,) = find_stale([dataclasses.replace(proof, op="thrice")], folders, {})
    assert "there is no operator thrice any more" in gone
    assert all(isinstance(value, str) for value in find_installed().values())


@pytest.mark.parametrize("text", ["{", "[]", '{"schema_version": 1, "proofs": [{"op": 1}]}'])
def test_what_is_no_store_is_a_usage_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "e.json").write_text(text)
    with pytest.raises(UsageError, match="no evidence store"):
        read_store(tmp_path / "e.json")
    (tmp_path / "e.json").write_text('{"schema_version": 9, "proofs": []}')
    with pytest.raises(UsageError, match="upgrade precision-align"):
        read_store(tmp_path / "e.json")
    assert read_store(tmp_path / "absent.json") == []


def test_a_folder_of_replacements_is_tested_without_touching_ours(folders: Folders, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    library = folders.cases.parent
    with pytest.raises(UsageError, match="no replacements at"):
        run_cases(library=library, replacements=mine)
    (mine / "_shared.py").write_text("raise RuntimeError('not a replacement')")
    (mine / "twice.py").write_text("def twice(x):\n    return x + x + 0 * x\n")
    report = run_cases(library=library, replacements=mine)
    assert report.passed
    assert report.results[0].replacement.endswith(":twice")
    (mine / "twice.py").write_text("def twice(x):\n    return x * 3  # wrong\n")
    assert not run_cases(library=library, replacements=mine).passed
    (mine / "twice.py").write_text("def other(x):\n    return x  # named wrongly\n")
    with pytest.raises(RuleError, match="defines no function twice"):
        run_cases(library=library, replacements=mine)
    (mine / "twice.py").rename(mine / "twise.py")
    (mine / "twise.py").write_text("def twise(x):\n    return x\n")
    with pytest.raises(UsageError, match="did you mean twice"):
        run_cases(library=library, replacements=mine)
