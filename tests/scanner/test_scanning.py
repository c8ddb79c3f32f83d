"""Trees, baselines, SARIF, rules of the user's own, and what the mapping library covers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from precision_align.core.errors import RuleError, UsageError
from precision_align.library.loading import load_library
from precision_align.scanner.baseline import hide_known, read_baseline, write_baseline
from precision_align.scanner.findings import Cover, FindingClass
from precision_align.scanner.rendering import render_scan
from precision_align.scanner.rules import load_rules
from precision_align.scanner.sarif import LEVELS, build_sarif
from precision_align.scanner.scanning import find_uses, scan_tree
from precision_align.scanner.text_source import classify, strip_comments
from precision_align.workflows.scanning import scan_source

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "model.py").write_text("import flash_attn\nfrom flash_attn import flash_attn_func\nx.cuda()\n")
    (tmp_path / "pkg" / "kernel.cu").write_text("__global__ void f() {}\n")
    (tmp_path / "old.py").write_text("print 'Python 2'\n")
    (tmp_path / ".hidden").mkdir()
    (tmp_path / ".hidden" / "x.py").write_text("import cupy\n")
    return tmp_path


def test_a_tree_is_read_once_and_what_was_not_is_said(tree: Path) -> None:
    report = scan_tree(tree, load_rules())
    assert [(f.file, f.line, f.rule) for f in report.findings] == [
        ("pkg/kernel.cu", 1, "R198"),
        ("pkg/kernel.cu", 1, "R199"),
        ("pkg/model.py", 1, "R014"),
        ("pkg/model.py", 2, "R014"),
        ("pkg/model.py", 3, "R145"),
    ]
    assert (report.files, report.notes[0].partition(":")[0]) == (3, "old.py")
    assert sum(report.counts.values()) == 5


def test_a_single_file_and_a_missing_one(tree: Path) -> None:
    assert [f.rule for f in scan_tree(tree / "pkg" / "kernel.cu", load_rules()).findings] == ["R198", "R199"]
    with pytest.raises(UsageError, match="does not exist"):
        scan_tree(tree / "nowhere", load_rules())


def test_the_work_list_names_rows_by_symbol_and_says_which_have_cases(tree: Path) -> None:
    report = scan_source(tree, load_rules(), load_library().rows)
    by_line = {(f.file, f.line): f for f in report.findings}
    function = by_line["pkg/model.py", 2]
    assert (function.rows, function.cover) == (("M003",), Cover.TESTED)
    assert by_line["pkg/kernel.cu", 1].cover == Cover.ROW
    assert scan_source(tree, load_rules()).work == {"row with cases": 0, "row without cases": 0, "no row": 4}
    text = render_scan(report)
    assert "flash_attn.flash_attn_func [needs mapping] M003" in text
    assert "pkg/model.py:3" not in text
    assert "pkg/model.py:3" in render_scan(report, everything=True)


def test_a_baseline_survives_lines_that_move_and_shows_what_is_new(tree: Path, tmp_path: Path) -> None:
    file = tmp_path / "baseline.json"
    write_baseline(file, scan_tree(tree, load_rules()).findings)
    model = tree / "pkg" / "model.py"
    model.write_text("# a line above\n\n" + model.read_text() + "y.cuda()\nx.cuda()\n")
    report = hide_known(scan_tree(tree, load_rules()), read_baseline(file))
    assert [(f.line, f.text) for f in report.findings] == [(6, "y.cuda()"), (7, "x.cuda()")]
    assert report.known == 5
    file.write_text("{}")
    with pytest.raises(UsageError, match="no baseline"):
        read_baseline(file)


def test_sarif_has_what_the_standard_requires(tree: Path) -> None:
    rules = load_rules()
    document: Any = json.loads(json.dumps(build_sarif(scan_tree(tree, rules), rules)))
    assert document["version"] == "2.1.0"
    (run,) = document["runs"]
    described = run["tool"]["driver"]["rules"]
    assert len({rule["id"] for rule in described}) == len(described)
    assert len(run["results"]) == 5
    for result in run["results"]:
        assert described[result["ruleIndex"]]["id"] == result["ruleId"]
        assert result["level"] in {"none", "note", "warning", "error"}
        assert result["message"]["text"]
        place = result["locations"][0]["physicalLocation"]
        assert not place["artifactLocation"]["uri"].startswith("/")
        assert min(place["region"]["startLine"], place["region"]["startColumn"]) >= 1
    assert set(LEVELS) == set(FindingClass)


def test_rules_of_the_users_add_replace_and_disable(tree: Path, tmp_path: Path) -> None:
    mine = tmp_path / "mine.toml"
    mine.write_text(
        'schema_version = 1\ndisable = ["R145"]\n[[rule]]\nid = "OUR1"\nclass = "blocks"\nmethods = ["cuda"]\n'
        'what = "we say"\n[[rule]]\nid = "R014"\nclass = "info"\nimports = ["flash_attn"]\nwhat = "known here"\n'
    )
    found = {(f.rule, f.cls) for f in scan_tree(tree, load_rules([mine])).findings if f.file.endswith("model.py")}
    assert found == {("OUR1", FindingClass.BLOCKS), ("R014", FindingClass.INFO)}


def test_every_problem_of_a_rule_file_is_reported_at_once(tmp_path: Path) -> None:
    bad = tmp_path / "bad.toml"
    bad.write_text(
        'schema_version = 2\ncolour = 1\ndisable = ["R999"]\n[[rule]]\nid = "A"\nclass = "hard"\nwhat = "w"\n'
        '[[rule]]\nid = "B"\nclass = "info"\nwhat = "w"\nstrings = "("\nshape = 1\n'
        '[[rule]]\nclass = "info"\ntext = "x"\nimports = "apex"\n'
    )
    with pytest.raises(RuleError) as caught:
        load_rules([bad])
    for expected in (
        "schema_version: must be 1",
        "colour: unknown key",
        "no rule is called 'R999'",
        "rule A: class: is 'hard'",
        "rule A: looks for nothing",
        "rule B: strings: '(' is no regular expression",
        "rule B: shape: unknown key",
        "rule 2: id: is missing",
        "rule 2: what: is missing",
        "rule 2: text: goes with files",
        "rule 2: imports: is 'apex', must be a list",
    ):
        assert expected in str(caught.value), expected


def test_built_in_rules_name_rows_that_exist_and_have_a_fix() -> None:
    ids = {row.id for row in load_library().rows}
    rules = load_rules()
    assert len(rules) >= 220
    assert {row for rule in rules for row in rule.rows} <= ids
    quiet = (FindingClass.AUTO, FindingClass.INFO)
    assert [rule.id for rule in rules if not rule.fix and rule.cls not in quiet] == []


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("a/b.py", "python"), ("k.cuh", "cpp"), ("CMakeLists.txt", "build"), ("Dockerfile.gpu", "docker"),
        ("dev-requirements.txt", "requirements"), ("run.slurm", "shell"), ("x.yaml", "config"), ("notes.md", ""),
    ],
)  # fmt: skip
def test_kinds_of_files(name: str, kind: str) -> None:
    assert classify(name) == kind


def test_comments_go_and_lines_stay() -> None:
    code = '#include <cuda.h> // c\nx = "cudaMalloc"; /* two\nlines */ y;\n'
    stripped = strip_comments(code, "cpp")
    assert stripped.count("\n") == code.count("\n")
    assert "cuda.h" in stripped
    assert "cudaMalloc" not in stripped
    assert "lines" not in stripped
    assert strip_comments("a # b\n# c\nd#e", "shell").split("\n") == ["a ", "", "d#e"]


def test_uses_of_changed_operators_are_found_through_aliases(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(
        "import torch, torch_npu as n\nfrom torch_npu import npu_quant_scatter\n# npu_quant_scatter\n"
        "n.npu_quant_scatter(x)\ntorch.ops.npu.npu_gelu(x)\nother.npu_quant_scatter(x)\n"
    )
    uses = find_uses(tmp_path, {"npu::npu_quant_scatter": "axis", "aten::npu_gelu": "not this one"})
    assert [(use["line"], use["name"], use["reason"]) for use in uses] == [(4, "npu_quant_scatter", "axis")]


def run(*words: str) -> subprocess.CompletedProcess[str]:
    code = "import sys; sys.modules['torch'] = None; from precision_align.cli.app import main; sys.exit(main())"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "LANG": "C.UTF-8"}
    command = [sys.executable, "-c", code, "scan", *words]
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


def test_the_verb_scans_writes_and_fails_where_it_is_asked_to(tree: Path, tmp_path: Path) -> None:
    sarif, baseline = tmp_path / "out.sarif", tmp_path / "baseline.json"
    done = run(str(tree), "--json", "--sarif", str(sarif), "--write-baseline", str(baseline))
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["counts"]["needs mapping"] == 2
    assert report["findings"][0]["class"] == "needs custom kernel"
    assert len(json.loads(sarif.read_text())["runs"][0]["results"]) == 5
    done = run(str(tree), "--baseline", str(baseline), "--fail-on", "info")
    assert (done.returncode, "5 known from the baseline" in done.stdout) == (0, True)
    done = run(str(tree), "--fail-on", "needs mapping", "--class", "auto")
    assert (done.returncode, "pkg/model.py:3: cuda" in done.stdout) == (1, True)
    assert run(str(tree / "nowhere")).returncode == 2
