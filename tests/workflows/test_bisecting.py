"""The search for the fewest swaps: over a model of runs, and over runs of a real script."""

from __future__ import annotations

import json
import shlex
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from programs import make_environment, run_python

from precision_align.cli import bisect
from precision_align.cli.app import main
from precision_align.core.errors import UsageError
from precision_align.workflows.bisecting import CURED, ILL, Criterion, OutOfRuns, Trial, find_cure, measure_distance
from precision_align.workflows.comparing import compare
from precision_align.workflows.minimising import minimise

ITEMS = [f"m{number}" for number in range(12)]


@settings(max_examples=60, deadline=None)
@given(st.sets(st.sampled_from(ITEMS), min_size=1, max_size=4))
def test_the_minimum_is_found_wherever_it_lies(needed):
    asked = []

    def does_it(subset):
        asked.append(subset)
        return needed <= set(subset)

    assert set(minimise(ITEMS, does_it)) == needed
    assert len(asked) <= len(ITEMS) ** 2


def test_a_part_that_cannot_be_tried_keeps_its_elements():
    assert minimise(["a", "b", "c"], lambda subset: {"a", "c"} <= set(subset) and len(subset) != 2) == ("a", "b", "c")


SCRIPT = """
import os, random, sys
import torch
from torch import nn
from precision_align.devices.simulated import install_simulated

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 8), nn.Softmax(-1), nn.Linear(8, 4))
batches = [torch.randn(5, 6) for _ in range(2)]
if sys.argv[1] == "npu":
    install_simulated("none", [part for part in sys.argv[2:] if "@" in part])
    model, batches = model.to("npu"), [batch.to("npu") for batch in batches]
if "cure" in sys.argv:
    sys.path.insert(0, os.environ["CURE"])
    from cure import cure
    cure(model)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for batch in batches:
    optimizer.zero_grad()
    loss = (model(batch) ** 2).mean()
    loss.backward()
    optimizer.step()
    if "fragile" in sys.argv and "forward" in vars(model[4]):
        raise SystemExit(7)
"""
NORM, SOFTMAX = "scale@*:layer_norm:value=1.5:call=*", "scale@*:softmax:value=1.5:call=*"


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with the script and the reference's dump; runs are forked, not started."""
    pytest.importorskip("torch")

    def execute(words, log):
        assert words[0] == sys.executable
        done = run_python(*words[1:], cwd=tmp_path)
        log.write_text(done.stdout + done.stderr)
        return done.returncode

    monkeypatch.setattr(bisect, "execute", execute)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SCRIPT)
    words = [sys.executable, *shlex.split("-m precision_align capture -o reference -- train.py cpu")]
    assert execute(words, tmp_path / "log") == 0
    return tmp_path


def search(*words, script):
    return main(["bisect", "-o", "found", "--reference", "reference", *words, "--", "train.py", *script])


def read_ledger(place):
    rows = json.loads((place / "found" / "bisect.json").read_text())["trials"]
    return {(*row["swaps"], row["repeat"]): row["outcome"] for row in rows}


def test_two_faults_are_cured_by_two_swaps_and_the_snippet_cures_too(place, capsys):
    assert search("--candidates", "1,4", script=["npu", NORM, SOFTMAX]) == 0
    text = capsys.readouterr()
    assert "1=cpu, 4=cpu: cured, and confirmed" in text.out
    assert "run 1 of at most 20" in text.err
    ledger = read_ledger(place)
    assert [ledger[0,], ledger["1=cpu", 0], ledger["4=cpu", 0]] == [ILL] * 3
    assert ledger["1=cpu", "4=cpu", 1] == CURED
    assert search("--candidates", "1,4", script=["npu", NORM, SOFTMAX]) == 0  # from the ledger
    assert read_ledger(place) == ledger
    again = capsys.readouterr()
    assert "known: 1=cpu, 4=cpu, again: cured" in again.err
    assert "run 1" not in again.err
    assert search(script=["npu"]) == 2  # another search in the same folder
    assert "belongs to another search" in capsys.readouterr().err
    notes = compare("reference", "found/swapped").notes
    assert "the candidate was recorded with swaps: 1=cpu (2 calls), 4=cpu (2 calls)" in notes
    run_cured(place, NORM, SOFTMAX)


def run_cured(place, *faults):
    """The script with the snippet in it and without any swap."""
    words = ["-m", "precision_align", "capture", "-o", "cured", "--", "train.py", "npu", "cure", *faults]
    done = run_python(*words, cwd=place, env=make_environment(CURE=str(place / "found")))
    assert done.returncode == 0, done.stderr
    assert compare("reference", "cured").verdict == "aligned"


def test_what_compare_blames_is_tried_first(place, capsys):
    words = ["-m", "precision_align", "capture", "-o", "candidate", "--", "train.py", "npu", NORM]
    assert run_python(*words, cwd=place).returncode == 0
    assert main(["compare", "reference", "candidate", "-o", "report.json"]) == 1
    assert search("--report", "report.json", "--kind", "composed", "--runs", "2", script=["npu", NORM]) == 0
    assert "1=composed: cured, and confirmed" in capsys.readouterr().out
    assert list(read_ledger(place)) == [("1=composed", 0), ("1=composed", 1)]


def test_a_crash_is_no_cure_and_the_runs_are_counted(place, capsys):
    words = ["--candidates", "4,torch.nn.functional.layer_norm=fp32,1", "--until", "loss<1e-4", "--runs", "3"]
    assert search(*words, "--capture", "--steps 0-1 --sources modules", script=["npu", NORM, "fragile"]) == 1
    ledger = read_ledger(place)
    assert ledger["4=cpu", "torch.nn.functional.layer_norm=fp32", "1=cpu", 0] == "unresolved"
    assert "none of these swaps, nor all together, cures it" in capsys.readouterr().out
    assert "exit status 7" in (place / "found" / "bisect.json").read_text()


class Runs:
    """A laboratory whose runs are a function."""

    def __init__(self, outcome, limit=99):
        self.outcome, self.limit, self.trials = outcome, limit, []

    def try_swaps(self, swaps, repeat=0):
        if len(self.trials) >= self.limit:
            raise OutOfRuns
        self.trials.append(Trial(swaps, repeat, self.outcome(set(swaps), repeat), "", 0.0))
        return self.trials[-1]


def test_a_cure_that_does_not_come_again_is_none():
    runs = Runs(lambda swaps, repeat: CURED if "b" in swaps and not repeat else ILL)
    found = find_cure(runs, ["b"], ["a"])
    assert (found.swaps, found.confirmed) == (("b",), False)
    assert "not deterministic" in found.text


def test_where_the_runs_end_the_smallest_cure_so_far_is_given():
    needed = {"m1", "m4"}
    found = find_cure(Runs(lambda swaps, repeat: CURED if needed <= swaps else ILL, limit=5), [], ITEMS)
    assert needed <= set(found.swaps) < set(ITEMS)
    assert [found.minimal, found.confirmed] == [False, False]
    assert find_cure(Runs(lambda swaps, repeat: ILL, limit=1), ["a", "b"], []).text == "no cure within the runs allowed"


@pytest.mark.parametrize(
    ("until", "text"),
    [
        ("aligned", "needs --reference"),
        ("loss<0", "SERIES<SHARE"),
        ("loss", "SERIES<SHARE"),
        ("loss<0.1", "needs --ref"),
    ],
)
def test_conditions_that_cannot_be_judged_are_refused(until, text):
    with pytest.raises(UsageError, match=text):
        Criterion.parse(until, None)


def test_nan_is_no_cure():
    assert measure_distance(float("nan"), 1.0) == float("inf")
    assert measure_distance(1.0, float("nan")) == float("inf")
    assert measure_distance(1.1, 1.0) == pytest.approx(0.1)
