"""compare: from two dumps to a report and an exit status."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest

from precision_align.cli.compare import ALIGNED, DIVERGED, NOT_COMPARABLE, find_status
from precision_align.core.results import Coverage
from precision_align.core.terms import Phase, Verdict


def test_diverged(command: Any, runs: Any) -> None:
    outcome = command("compare", runs / "reference", runs / "candidate", "-o", "r.html", "-o", "r.json")
    assert outcome.status == DIVERGED
    assert "saved r.html" in outcome.err
    assert outcome.out.startswith("DIVERGED")
    assert "1 · forward · step 0 · call 0" in outcome.out
    saved = json.loads((command.folder / "r.json").read_text(encoding="utf-8"))
    assert saved["first"]["scope"] == "1"
    assert saved["candidate"]["path"] == str(runs / "candidate")
    assert command("report", "r.json").out == outcome.out


def test_aligned_with_itself_and_options_between(command: Any, runs: Any) -> None:
    outcome = command("compare", runs / "reference", "--json", runs / "reference")
    assert outcome.status == ALIGNED
    assert json.loads(outcome.out)["verdict"] == "aligned"


def test_too_little_judged_is_not_aligned(command: Any, runs: Any) -> None:
    report = json.loads(command("compare", runs / "reference", runs / "reference", "--json").out)
    judged = sum(seen["judged"] for seen in report["coverage"].values())
    recorded = sum(seen["recorded"] for seen in report["coverage"].values())
    outcome = command("compare", runs / "reference", runs / "reference", "--min-coverage", 1)
    assert outcome.status == (ALIGNED if judged == recorded else NOT_COMPARABLE)


@pytest.mark.parametrize(
    ("verdict", "judged", "minimum", "status"),
    [
        (Verdict.ALIGNED, 10, 0.5, ALIGNED),
        (Verdict.ALIGNED, 5, 0.5, ALIGNED),
        (Verdict.ALIGNED, 4, 0.5, NOT_COMPARABLE),
        (Verdict.ALIGNED, 0, 0.0, ALIGNED),
        (Verdict.DIVERGED, 1, 0.5, DIVERGED),
        (Verdict.NOT_COMPARABLE, 10, 0.0, NOT_COMPARABLE),
    ],
)
def test_exit_status(findings: ModuleType, verdict: Verdict, judged: int, minimum: float, status: int) -> None:
    report = findings.make_aligned()
    coverage = {Phase.FORWARD: Coverage(10, judged, 10, judged)}
    assert find_status(replace(report, verdict=verdict, coverage=coverage), minimum) == status


def test_candidate_alone_with_the_reference_code(command: Any, runs: Any) -> None:
    for target in (f"{runs / 'model.py'}:build", "model:build"):
        outcome = command("compare", runs / "candidate", "--replay", target, PYTHONPATH=str(runs))
        assert outcome.status == DIVERGED, outcome.err
        assert "1 · forward · step 0" in outcome.out


def test_replay_code_that_fails_is_told(command: Any, runs: Any) -> None:
    (command.folder / "broken.py").write_text("raise RuntimeError('boom')", encoding="utf-8")
    outcome = command("compare", runs / "candidate", "--replay", "broken:build")
    assert outcome.status == 2
    assert "RuntimeError: boom" in outcome.err


REPLAY_CODE = """
import sys

def exits():
    sys.exit(0)

def raises():
    raise ValueError("my factory broke")

def needs(x):
    return x
"""


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("rp:exits", "SystemExit: 0"),
        ("rp:raises", "ValueError: my factory broke"),
        ("rp:needs", "missing 1 required positional argument"),
        ("rp:sys", "not module"),
        ("rp:nothing", "has no attribute 'nothing'"),
        ("leaves:build", "'leaves:build' ended the program (sys.exit(0)) while it was imported"),
        ("leaves.py:build", "'leaves.py:build' ended the program (sys.exit(0)) while it was imported"),
        ("speaks:build", "(sys.exit('enough'))"),
    ],
)
@pytest.mark.parametrize("language", ["en", "zh"])
def test_replay_code_that_leaves_is_wrong_use(command: Any, runs: Any, target: str, said: str, language: str) -> None:
    (command.folder / "rp.py").write_text(REPLAY_CODE, encoding="utf-8")
    (command.folder / "leaves.py").write_text("import sys\nsys.exit(0)\n", encoding="utf-8")
    (command.folder / "speaks.py").write_text("raise SystemExit('enough')\n", encoding="utf-8")
    sides = runs / "reference", runs / "candidate"
    outcome = command("compare", *sides, "--replay", target, "--lang", language)
    assert (outcome.status, outcome.out) == (2, "")
    assert "[PA100]" in outcome.err
    assert "bug of precision-align" not in outcome.err
    if language == "en":
        assert said in outcome.err


@pytest.mark.parametrize("code", ["0", "None"])
def test_a_replacement_that_leaves_is_no_pass(command: Any, code: str) -> None:
    pytest.importorskip("torch")
    (command.folder / "imported.py").write_text(f"raise SystemExit({code})\n", encoding="utf-8")
    (command.folder / "called.py").write_text(f"def norm(**_):\n    raise SystemExit({code})\n", encoding="utf-8")
    for module, status in (("imported", 2), ("called", 1)):
        words = "case", "run", "rms_norm/plain", "--forward-only", "--replacement", f"{module}:norm"
        outcome = command(*words, PYTHONPATH=str(command.folder))
        assert outcome.status == status, outcome


def test_an_interrupted_run_says_so_in_the_verdict(command: Any, runs: Any) -> None:
    shutil.copytree(runs / "reference", command.folder / "cut")
    last = sorted((command.folder / "cut").rglob("step*.h5"))[-1]
    last.write_bytes(last.read_bytes()[: last.stat().st_size // 2])
    outcome = command("compare", runs / "reference", "cut")
    words = " ".join(outcome.out.split())
    assert outcome.status == NOT_COMPARABLE
    assert words.startswith("NOT COMPARABLE No verdict: candidate: ")
    assert f"{last.name} is truncated or damaged" in words
    assert "precision-align show cut" in outcome.out


def test_rules_that_are_wrong_are_told(command: Any, runs: Any) -> None:
    (command.folder / "rules.toml").write_text("unknown = 1\n", encoding="utf-8")
    outcome = command("compare", runs / "reference", runs / "candidate", "--rules", "rules.toml")
    assert (outcome.status, outcome.out) == (2, "")
    assert "[PA1" in outcome.err


LOADED = """
import sys
from precision_align.cli.app import main

status = main(["compare", *sys.argv[1:]])
print("loaded", *sorted({"torch", "numba", "jinja2"} & sys.modules.keys()))
raise SystemExit(status)
"""


def test_what_nothing_has_to_be_replayed_for_loads_no_torch(command: Any, runs: Any) -> None:
    """Start-up is most of what a comparison of two small dumps takes, and torch most of start-up."""
    words = (runs / "reference", runs / "reference", "-o", "r.json")
    outcome = command.launch([sys.executable, "-c", LOADED], words, {})
    assert outcome.status == ALIGNED, outcome.err
    assert outcome.out.strip().endswith("loaded")
