"""First divergence, frontier, coverage and verdict, from rows."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from precision_align.comparison.engine import Comparison
from precision_align.comparison.rules import Rules
from precision_align.core.results import Limit, RecordResult
from precision_align.core.terms import Kind, Phase, Role, Site, Status, Verdict
from precision_align.divergence.locating import find_frontier, locate, measure_coverage

COUNTER = itertools.count()


def row(scope, status=Status.PASS, **changes):
    number = next(COUNTER)
    values = {
        "key": f"key{number}",
        "scope": scope,
        "site": Site.MODULE,
        "phase": Phase.FORWARD,
        "role": Role.OUTPUT,
        "path": "",
        "call": 0,
        "step": 0,
        "micro": 0,
        "rank": 0,
        "op": "Linear",
        "status": status,
        "evidence": "replay",
        "nbytes": 100,
        "order": number,
    }
    return RecordResult(**{**values, **changes})


def find(*rows, rules=None, notes=()):
    return locate(Comparison(list(rows), list(notes), frozenset({""})), rules)


ROOT = row("")


def test_all_passed_is_aligned():
    found = find(row("a"), row("b"), ROOT)
    assert (found.verdict, found.first, list(found.frontier), list(found.notes)) == (Verdict.ALIGNED, None, [], [])


def test_the_first_failure_in_walk_order():
    found = find(row("a"), row("b", Status.FAIL), row("c", Status.FAIL), row("", Status.PROPAGATED))
    assert (found.verdict, found.first.scope, found.first.kind) == (Verdict.DIVERGED, "b", Kind.ORIGIN)
    assert [divergence.scope for divergence in found.frontier] == ["b", "c"]


def test_origin_before_mode_before_random():
    rows = [row("r", Status.RANDOM), row("m", Status.MODE), row("o", Status.FAIL), ROOT]
    assert [divergence.scope for divergence in find(*rows).frontier] == ["o", "m", "r"]
    assert find(*rows[:2], ROOT).first.kind == Kind.MODE
    assert find(rows[0], ROOT).first.kind == Kind.RANDOM
    assert find(rows[0], ROOT).verdict == Verdict.DIVERGED


def test_a_declared_mode_is_no_divergence():
    mode = row("m", Status.MODE, note="HF32: inputs of products rounded to 11 mantissa bits")
    declared = Rules((), frozenset({"hf32"}))
    assert find(mode, ROOT).verdict == Verdict.DIVERGED
    assert find(mode, ROOT, rules=declared).verdict == Verdict.ALIGNED
    assert find(mode, ROOT, rules=Rules((), frozenset({"saturation"}))).verdict == Verdict.DIVERGED
    assert find(mode, row("x", Status.FAIL), rules=declared).first.scope == "x"


def test_one_place_is_listed_once_at_its_first_record():
    rows = [row("a", Status.FAIL, call=call, path=str(call)) for call in range(3)]
    (found,) = find_frontier(rows, Rules())
    assert (found.call, found.key) == (0, rows[0].key)
    other = row("a", Status.FAIL, phase=Phase.BACKWARD)
    assert len(find_frontier([*rows, other], Rules())) == 2


def test_what_a_divergence_carries():
    limit = Limit("z", 4.0, "bound")
    bad = row("a", Status.FAIL, metrics={"z": 9.0}, limit=limit, note="too far", source="model.py:3", step=2, rank=1)
    first = find(bad).first
    assert (first.step, first.rank, first.source, first.limit, first.metrics) == (2, 1, "model.py:3", limit, {"z": 9.0})
    assert "too far" in first.evidence
    assert "replay" in first.evidence
    raw = find(row("a", Status.FAIL, evidence="raw", note="differs")).first
    assert "raw difference" in raw.evidence


def test_warnings_alone_are_aligned_with_a_note():
    found = find(row("a", Status.WARN), row("b", Status.WARN), ROOT)
    assert found.verdict == Verdict.ALIGNED
    assert any("2 records are noisier" in note for note in found.notes)


def test_inconclusive_records_before_the_first_limit_the_claim():
    rows = [row("a", Status.INCONCLUSIVE), row("b", Status.FAIL), row("c", Status.INCONCLUSIVE), ROOT]
    assert any("1 record before the first divergence" in note for note in find(*rows).notes)
    assert not any("before the first" in note for note in find(*rows[1:]).notes)
    assert any("2 records in all" in note for note in find(rows[0], rows[2], ROOT).notes)


def test_nothing_judged_is_not_comparable():
    assert find().verdict == Verdict.NOT_COMPARABLE
    assert find(row("", Status.INCONCLUSIVE), row("", Status.MISSING)).verdict == Verdict.NOT_COMPARABLE
    assert find(row("a"), row("", Status.INCONCLUSIVE)).verdict == Verdict.NOT_COMPARABLE
    assert find(row("", site=Site.INPUTS)).verdict == Verdict.NOT_COMPARABLE
    assert find(row("", role=Role.INPUT)).verdict == Verdict.NOT_COMPARABLE


def test_a_judged_step_is_enough_to_compare():
    step = row("a", phase=Phase.STEP, site=Site.OPTIMIZER, role=Role.PARAMETER)
    assert find(step).verdict == Verdict.ALIGNED


def test_an_amplifier_is_named_and_called_innocent():
    metrics = {"amplification": 5000.0, "raw_rel_l2": 0.5, "raw_rel_l2_in": 1e-4}
    found = find(row("norm", Status.PROPAGATED, metrics=metrics), ROOT)
    (note,) = [note for note in found.notes if "amplifier" in note]
    assert "norm" in note
    assert "x5000" in note
    failing = row("norm", Status.FAIL, metrics=metrics)
    assert not any("amplifier" in note for note in find(failing, ROOT).notes)
    quiet = row("norm", Status.PROPAGATED, metrics={**metrics, "amplification": 50.0})
    assert not any("amplifier" in note for note in find(quiet, ROOT).notes)


def test_coverage_counts_records_and_bytes_by_phase():
    rows = [row("a"), row("b", Status.FAIL, nbytes=50), row("c", Status.INCONCLUSIVE, nbytes=850)]
    rows += [row("a", Status.MISSING, phase=Phase.BACKWARD)]
    coverage = measure_coverage(rows)
    forward = coverage[Phase.FORWARD]
    assert (forward.recorded, forward.judged, forward.recorded_bytes, forward.judged_bytes) == (3, 2, 1000, 150)
    assert forward.share == pytest.approx(2 / 3)
    assert coverage[Phase.BACKWARD].judged == 0
    assert Phase.STEP not in coverage


ROWS = st.lists(
    st.tuples(st.sampled_from(list(Status)), st.sampled_from(["", "a", "b"]), st.sampled_from(list(Phase))), max_size=20
)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(ROWS)
def test_verdict_frontier_and_coverage_agree(drawn):
    rows = [row(scope, status, phase=phase) for status, scope, phase in drawn]
    found = find(*rows)
    bad = [item for item in rows if item.status in (Status.FAIL, Status.NONDETERMINISTIC, Status.MODE, Status.RANDOM)]
    assert (found.verdict == Verdict.DIVERGED) == bool(bad)
    assert found.first is (found.frontier[0] if found.frontier else None)
    failing = [item for item in rows if item.status == Status.FAIL]
    if failing:
        assert found.first.key == failing[0].key
    total = sum(part.recorded for part in found.coverage.values())
    assert total == len(rows)
    unjudged = sum(item.status in (Status.INCONCLUSIVE, Status.MISSING) for item in rows)
    assert sum(part.judged for part in found.coverage.values()) == len(rows) - unjudged


def test_no_verdict_says_why_in_its_first_note():
    nothing = find(row("", Status.INCONCLUSIVE, note="x"), notes=["a"])
    assert nothing.notes[:2] == ["no output of the model and no optimizer step could be judged", "a"]
    far = {"raw_over_max": 0.5}
    hidden = row("b", Status.INCONCLUSIVE, metrics=far, note="no replay of it")
    found = find(row("a"), hidden, row("", Status.PROPAGATED, metrics=far), notes=["a"])
    assert found.verdict == Verdict.NOT_COMPARABLE
    assert found.notes[0].startswith(
        "the runs differ, and what may be the cause could not be judged: 1 in all, first b, forward, step 0 "
        "(no replay of it)"
    )
    cut_off = Comparison([row("a"), ROOT], ["candidate: it was stopped"], frozenset({""}), interrupted=True)
    assert (locate(cut_off).verdict, locate(cut_off).notes[0]) == (Verdict.NOT_COMPARABLE, "candidate: it was stopped")
