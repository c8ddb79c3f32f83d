"""The ledger: what got worse is named, what did not passes, damage is told by its line."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from programs import run_python

from precision_align.cli.app import main
from precision_align.core.errors import DumpDamaged, DumpNotFound, SchemaTooNew, UsageError
from precision_align.reporting.baseline import describe_baseline, describe_ledger
from precision_align.reporting.resultpages import render_page
from precision_align.training.baselines import Entry, add_entry, judge_entry, median_of_series, read_ledger

BASE = Entry("start", "tiny", "aligned", "", 0.5, 40e9, 0.2, 0.001)


def fails(**changes: object) -> set[str]:
    report = judge_entry([BASE], replace(BASE, name="change", **changes))
    assert report.passed == (not any(judgement.holds is False for judgement in report.judgements))
    return {judgement.quantity for judgement in report.judgements if judgement.holds is False}


@pytest.mark.parametrize(
    ("changes", "worse"),
    [
        ({}, set()),
        ({"step_time": 0.52}, set()),
        ({"step_time": 0.4, "memory": 30e9, "communication": 0.1}, set()),
        ({"step_time": 0.53}, {"step_time"}),
        ({"memory": 43e9}, {"memory"}),
        ({"communication": 0.23}, {"communication"}),
        ({"loss_error": 0.002}, {"loss_error"}),
        ({"verdict": "diverged", "first": "layers.3"}, {"precision"}),
        ({"verdict": "not comparable", "step_time": 0.6}, {"precision", "step_time"}),
        ({"step_time": None}, set()),
    ],
)
def test_what_got_worse(changes: dict[str, object], worse: set[str]) -> None:
    assert fails(**changes) == worse


def test_a_known_divergence_may_stay_and_not_move() -> None:
    base = replace(BASE, verdict="diverged", first="layers.3")
    assert judge_entry([base], replace(base, name="x")).passed
    assert not judge_entry([base], replace(base, name="x", first="layers.1")).passed
    assert judge_entry([base], replace(base, name="x", verdict="aligned", first="")).passed


def test_nothing_measured_is_no_pass() -> None:
    empty = Entry("start", "tiny")
    assert not judge_entry([empty], replace(empty, name="x")).passed


def test_each_gate_has_its_own_baseline_and_the_newest_counts() -> None:
    ledger = [BASE, replace(BASE, gate="full", step_time=2.0), replace(BASE, name="later", step_time=1.0)]
    assert judge_entry(ledger, replace(BASE, name="x", step_time=1.04)).passed
    assert not judge_entry(ledger, replace(BASE, name="x", step_time=1.04), against="start").passed
    assert judge_entry(ledger, replace(BASE, name="x", gate="full", step_time=2.0)).passed
    with pytest.raises(UsageError, match="cards"):
        judge_entry(ledger, replace(BASE, gate="cards"))
    assert dict(judge_entry(ledger, replace(BASE, name="later")).gates) == {"tiny": True, "cards": None, "full": None}


def test_a_ledger_is_text_that_is_appended_to(tmp_path: Path) -> None:
    path = tmp_path / "baseline.jsonl"
    with pytest.raises(DumpNotFound, match="baseline add"):
        read_ledger(path)
    for name in ("one", "两"):
        add_entry(path, replace(BASE, name=name))
    assert [entry.name for entry in read_ledger(path)] == ["one", "两"]
    assert "两" in render_page(describe_ledger(read_ledger(path), "zh"), 120)


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("{", DumpDamaged),
        ("[]", DumpDamaged),
        ('{"name": "a", "gate": "huge", "schema_version": 1}', DumpDamaged),
        ('{"name": "a", "gate": "tiny", "colour": 1, "schema_version": 1}', DumpDamaged),
        ('{"name": "a", "gate": "tiny", "step_time": NaN, "schema_version": 1}', DumpDamaged),
        ('{"name": "a", "gate": "tiny", "schema_version": 2}', SchemaTooNew),
    ],
)
def test_a_damaged_line_is_named(tmp_path: Path, line: str, error: type[Exception]) -> None:
    path = tmp_path / "baseline.jsonl"
    add_entry(path, BASE)
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(error, match=r"line 2|newer"):
        read_ledger(path)


@pytest.mark.parametrize(
    "changes",
    [
        {"gate": "x"},
        {"verdict": "fine"},
        {"memory": -1.0},
        {"communication": 1.5},
        {"step_time": float("nan")},
        {"step_time": 0.0},
    ],
)
def test_an_entry_that_cannot_be(tmp_path: Path, changes: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        add_entry(tmp_path / "l.jsonl", replace(BASE, **changes))


def test_an_entry_without_a_measurement(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="measures nothing"):
        add_entry(tmp_path / "l.jsonl", Entry("start", "tiny"))
    assert not (tmp_path / "l.jsonl").exists()


def test_nothing_is_added_behind_half_a_line(tmp_path: Path) -> None:
    ledger = tmp_path / "l.jsonl"
    add_entry(ledger, BASE)
    whole = ledger.read_text()
    ledger.write_text(whole.rstrip("\n"))
    add_entry(ledger, replace(BASE, name="second"))
    assert [entry.name for entry in read_ledger(ledger)] == ["start", "second"]
    ledger.write_text(whole + whole[:40])
    with pytest.raises(DumpDamaged, match="line 2"):
        add_entry(ledger, replace(BASE, name="third"))
    assert ledger.read_text() == whole + whole[:40]


@pytest.mark.parametrize("broken", [{"kind": "not a number"}, {"unjudged": 7}])
def test_a_loss_with_nan_is_no_small_loss_error(tmp_path: Path, broken: dict[str, object]) -> None:
    (tmp_path / "loss.json").write_text(json.dumps({"mean_error": 1e-7, "unjudged": None, **broken}))
    words = ["baseline", "add", str(tmp_path / "l.jsonl"), "x", "--losses", str(tmp_path / "loss.json")]
    assert main(words) == 2


def test_the_first_tenth_warms_up() -> None:
    assert median_of_series([100.0, *[1.0] * 9]) == 1.0
    assert median_of_series([3.0]) == 3.0


def test_the_verb(tmp_path: Path) -> None:
    log = "\n".join(
        f"iteration {i} | elapsed time per iteration (ms): {9000 if i == 1 else 500 + i % 2} | lm loss: 2.0"
        for i in range(1, 21)
    )
    (tmp_path / "train.log").write_text(log)
    (tmp_path / "loss.json").write_text(json.dumps({"mean_error": 0.001}))

    def call(*words: str) -> subprocess.CompletedProcess[str]:
        return run_python("-m", "precision_align", "baseline", *words, cwd=tmp_path)

    options = ("--log", "train.log", "--losses", "loss.json", "--memory", "40GB", "--communication", "0.2")
    assert call("add", "b.jsonl", "start", *options).returncode == 0
    assert read_ledger(tmp_path / "b.jsonl")[0].step_time == pytest.approx(0.5005, abs=1e-3)
    same = call("check", "b.jsonl", "fused rope", *options)
    assert (same.returncode, same.stdout.startswith("NOT WORSE")) == (0, True)
    worse = call("check", "b.jsonl", "fused rope", "--step-time", "0.7", "--json")
    assert (worse.returncode, json.loads(worse.stdout)["passed"]) == (1, False)
    assert "start" in call("show", "b.jsonl").stdout
    assert call("check", "b.jsonl").returncode == 2
    assert call("show", "nowhere.jsonl").returncode == 3


def test_the_page_in_both_languages() -> None:
    report = judge_entry([BASE], replace(BASE, name="x", step_time=0.9))
    for language, word in (("en", "WORSE"), ("zh", "变差")):
        assert render_page(describe_baseline(report, language), 80).startswith(word)
