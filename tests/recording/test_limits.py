"""Budgets, zoom plans, triggers with a ring, switches from outside."""

from __future__ import annotations

import importlib.util
import os
import signal

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from programs import run_python
from torch import nn

from precision_align.core.errors import UsageError
from precision_align.core.records import Point
from precision_align.core.terms import Role, Tier
from precision_align.recording.plan import make_plan
from precision_align.recording.session import capture
from precision_align.recording.triggers import Trigger
from precision_align.recording.zoomplans import ZoomPlan, read_zoom_plan, write_zoom_plan
from precision_align.storage.opening import open_dump

pytestmark = pytest.mark.live


def wide():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 4))


def run(model, recorder, steps, width=64):
    for _ in range(steps):
        with recorder.step():
            model(torch.randn(8, width)).sum().backward()


def stored(dump, step):
    """Bytes of distinct payloads of a step."""
    sizes = {}
    for record in dump.records:
        if record.key.step == step and record.tier is Tier.FULL:
            sizes[record.digest] = record.nbytes
    return sum(sizes.values())


def test_a_budget_degrades_tiers_and_says_so(record):
    model = wide()
    limit = 80_000
    dump = record(model, lambda recorder: run(model, recorder, 2), budget_bytes=limit, steps=range(2))
    assert stored(dump, 0) + stored(dump, 1) <= limit
    poorer = [r for r in dump.records if r.tier is not Tier.FULL]
    assert poorer
    assert all("over the byte budget" in r.reason for r in poorer)
    assert all(r.statistics is not None and r.digest for r in poorer)
    assert any(note.startswith("step 0: over the byte budget") for note in dump.notes)
    # the second step knows: small tensors are full all along, the last as well as the first
    second = [r for r in dump.records if r.key.step == 1]
    small = [r for r in second if r.nbytes <= 512]
    assert {r.tier for r in small} == {Tier.FULL}
    assert stored(dump, 1) > 0


def test_a_budget_that_suffices_changes_nothing(record):
    model = wide()
    dump = record(model, lambda recorder: run(model, recorder, 2), budget_bytes=1 << 30)
    assert {r.tier for r in dump.records} == {Tier.FULL}
    assert not any("budget" in note for note in dump.notes)


def test_a_budget_of_an_endless_run_never_runs_out(record):
    model = wide()
    dump = record(model, lambda recorder: run(model, recorder, 12), budget_bytes=200_000)
    kept = [stored(dump, step) for step in range(12)]
    assert sum(kept) <= 200_000
    assert all(size > 0 for size in kept)


def test_two_runs_with_one_budget_keep_the_same_tensors(record):
    model = wide()
    tiers = []
    for _ in range(2):
        dump = record(model, lambda recorder: run(model, recorder, 3), budget_bytes=150_000)
        tiers.append([(str(r.key), r.tier) for r in dump.records])
    assert tiers[0] == tiers[1]


@settings(max_examples=40)  # each writes and reads a file
@given(
    payload=st.dictionaries(st.text(max_size=8), st.sampled_from([str(t) for t in Tier]), max_size=4),
    steps=st.none() | st.just("3,10-12"),
    default=st.sampled_from([str(t) for t in Tier]),
    suffix=st.sampled_from([".json", ".toml"] if importlib.util.find_spec("tomllib") else [".json"]),
)
def test_zoom_plans_read_back_equal(payload, steps, default, suffix, tmp_path_factory):
    if suffix == ".toml":
        payload = {glob.encode("utf-8", "ignore").decode(): tier for glob, tier in payload.items()}
    path = tmp_path_factory.getbasetemp() / f"plan{suffix}"
    plan = ZoomPlan(payload, default, steps)
    write_zoom_plan(plan, path)
    again = read_zoom_plan(path)
    assert again == plan
    assert list(again.payload) == list(plan.payload)


def test_a_zoom_plan_decides_tiers_and_steps(record, tmp_path):
    path = tmp_path / "plan.json"
    path.write_text('{"steps": [1], "payload": {"0": "full", "2": "sketch"}}')
    model = wide()
    dump = record(model, lambda recorder: run(model, recorder, 3), select=read_zoom_plan(path))
    tiers = {r.key.scope: r.tier for r in dump.records if r.key.role == Role.OUTPUT and r.key.source == "module"}
    assert tiers == {"": Tier.STATISTICS, "0": Tier.FULL, "1": Tier.STATISTICS, "2": Tier.FULL}  # 2: under 4 KB
    assert dump.steps == [1]
    assert make_plan(select=read_zoom_plan(path), steps="5", payload={"1": "full"}).tier("1") is Tier.FULL
    assert make_plan(select=read_zoom_plan(path), steps="5").wants_step(5)


@pytest.mark.parametrize(
    ("text", "problems"),
    [
        ("{", ["not valid"]),
        ("[]", ["table"]),
        ('{"step": 1, "payload": {"a": "ful"}}', ["'step'", "'ful'"]),
        ('{"payload": []}', ["payload"]),
        ('{"steps": {}}', ["steps"]),
        ('{"default": "none"}', ["'none'"]),
        ('{"payload": {"a": ["full"]}}', ["'full'"]),
    ],
)
def test_wrong_plans_are_refused_with_all_their_problems(text, problems, tmp_path):
    path = tmp_path / "plan.json"
    path.write_text(text)
    with pytest.raises(UsageError) as caught:
        read_zoom_plan(path)
    assert all(problem in str(caught.value) for problem in [str(path), *problems])
    with pytest.raises(UsageError, match="nowhere"):
        read_zoom_plan(tmp_path / "nowhere.toml")


def poisoned(model, recorder, steps, bad, value=float("nan")):
    for step in range(steps):
        model.zero_grad()
        with recorder.step():
            x = torch.randn(8, 64)
            if step == bad:
                x[0, 0] = value
            model(x).square().mean().backward()


def test_nan_makes_the_last_steps_written_with_their_batches(record):
    model = wide()
    dump = record(model, lambda recorder: poisoned(model, recorder, 9, 6), trigger="nan", ring=3)
    assert dump.steps == [4, 5, 6]
    batches = [dump.values(r.key) for r in dump.records if r.key.scope == "" and r.key.role == Role.INPUT]
    assert [bool(np.isnan(batch).any()) for batch in batches] == [False, False, True]
    assert len([p for p in dump.series if p.name == "loss"]) == 9  # of every step
    assert len([p for p in dump.series if p.name == "batch.fingerprint"]) == 9
    assert any("fired at step 6" in note and "nan" in note for note in dump.notes)


def test_infinities_count_where_they_are_never_ordinary(record):
    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))

        def forward(self, x, mask):
            return (x * self.weight + mask).softmax(-1)

    model, mask = Masked(), torch.tensor([0.0, 0.0, -torch.inf])

    def body(recorder):
        for step in range(4):
            with recorder.step():
                model(torch.ones(3) * (torch.inf if step == 2 else 1.0), mask).sum().backward()

    assert record(model, body, trigger="nan", ring=1).steps == [2]
    assert record(model, body, trigger="inf", ring=1).steps == [0]


def test_a_trigger_that_stays_true_fires_once_and_again_after_it_was_false(record):
    model = wide()

    def body(recorder):
        for step in range(8):
            model.zero_grad()
            with recorder.step():
                x = torch.full((2, 64), float("nan") if step in (1, 2, 3, 6) else 1.0)
                model(x).sum().backward()

    assert record(model, body, trigger="nan", ring=1).steps == [1, 6]


def test_a_loss_jump_against_the_median(record):
    model = wide()

    def body(recorder):
        for step in range(12):
            with recorder.step():
                (model(torch.ones(2, 64)).sum() * 0 + (40.0 if step == 9 else 10.0 + step % 2)).backward()

    dump = record(model, body, trigger=["nan", "loss > 3*median"], ring=2)
    assert dump.steps == [8, 9]


def test_no_trigger_no_tensors(record):
    model = wide()
    dump = record(model, lambda recorder: run(model, recorder, 4), trigger="nan")
    assert not dump.records
    assert len(dump.series) >= 4
    assert any("no trigger fired" in note for note in dump.notes)


def test_the_ring_is_bounded_in_bytes(record):
    model = wide()
    one = record(model, lambda recorder: run(model, recorder, 1))
    size = sum(r.nbytes for r in one.records)
    dump = record(model, lambda recorder: poisoned(model, recorder, 6, 5), trigger="nan", ring=6, ring_bytes=2 * size)
    assert 5 in dump.steps
    assert 1 <= len(dump.steps) <= 3
    assert any("no room" in note for note in dump.notes)
    tiny = record(model, lambda recorder: poisoned(model, recorder, 2, 1), trigger="nan", ring=1, ring_bytes=1000)
    assert tiny.steps == [1]
    assert any("ring" in r.reason for r in tiny.records)


def point(value, name="loss", step=0):
    return Point(step, 0, name, value)


def fires(trigger, value):
    trigger.look_at_point(point(value))
    return bool(trigger.finish_step())


def test_conditions_on_series():
    trigger = Trigger("loss>12.5")
    assert [fires(trigger, value) for value in (1, 13, 14, 2, 13)] == [False, True, False, False, True]
    trigger = Trigger("loss<0.5*mean")
    assert [fires(trigger, value) for value in (4, 4, 4, 4, 4, 1)] == [False] * 5 + [True]
    trigger = Trigger("grad_norm>2*median")
    assert not any(fires(trigger, value) for value in (1, 1, 1, 1, 1, 1, 9))  # another series
    for wrong in ("loss", "loss>", "loss>x", "loss>3*max", "", "median>>2", "env:", "loss>1e"):
        with pytest.raises(UsageError):
            Trigger(wrong)


def test_events_from_outside_fire_once_each(tmp_path, monkeypatch):
    path = tmp_path / "dump-now"
    trigger = Trigger([f"file:{path}", "env:PA_TEST_DUMP", "signal:USR1"])
    previous = signal.getsignal(signal.SIGUSR1)
    try:
        assert not trigger.finish_step()
        path.write_text("")
        assert "file" in trigger.finish_step()
        assert not trigger.finish_step()
        monkeypatch.setenv("PA_TEST_DUMP", "1")
        assert "env" in trigger.finish_step()
        os.kill(os.getpid(), signal.SIGUSR1)
        assert "signal" in trigger.finish_step()
        assert not trigger.finish_step()
    finally:
        trigger.close()
    assert signal.getsignal(signal.SIGUSR1) is not previous
    assert signal.getsignal(signal.SIGUSR1) == signal.SIG_DFL


def test_a_file_switches_recording_on_and_off(record, tmp_path):
    path, model = tmp_path / "on", wide()

    def body(recorder):
        for step in range(6):
            if step == 2:
                path.write_text("")
            if step == 4:
                path.unlink()
            with recorder.step():
                model(torch.ones(1, 64)).sum().backward()

    dump = record(model, body, switch=f"file:{path}")
    assert dump.steps == [2, 3]
    assert len(dump.series) == 6


SIGNALLED = """
import os, signal, sys
import torch
from torch import nn
from precision_align.recording.session import capture

before = []
signal.signal(signal.SIGUSR2, lambda *arguments: before.append(1))
model = nn.Linear(2, 1)
with capture(model, sys.argv[1], switch="signal:USR2") as recorder:
    for step in range(6):
        if step in (1, 3):
            os.kill(os.getpid(), signal.SIGUSR2)
        with recorder.step():
            model(torch.ones(1, 2)).sum().backward()
os.kill(os.getpid(), signal.SIGUSR2)
assert len(before) == 3, before
"""


def test_a_signal_switches_and_the_scripts_own_handler_still_runs(tmp_path):
    done = run_python("-c", SIGNALLED, tmp_path / "dump")
    assert done.returncode == 0, done.stderr
    with open_dump(tmp_path / "dump") as dump:
        assert {record.key.step for record in dump.records} == {1, 2}


def test_a_ring_writes_a_dump_on_disk_too(tmp_path):
    model = wide()
    with capture(model, tmp_path / "dump", trigger="nan", ring=2) as recorder:
        poisoned(model, recorder, 5, 3)
    with open_dump(tmp_path / "dump") as dump:
        assert {record.key.step for record in dump.records} == {2, 3}
        assert dump.info.capture["trigger"] == ["nan"]
        for record in dump.records:
            assert dump.payload(record.key).shape == record.shape
