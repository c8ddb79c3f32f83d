"""A comparison under a time budget: the most suspicious calls first, and no claim about what was not judged."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

import precision_align as pa
from precision_align.cli.app import main
from precision_align.comparison.deadlines import Deadline
from precision_align.comparison.engine import Engine
from precision_align.core.results import OUT_OF_TIME
from precision_align.core.terms import Status, Verdict
from precision_align.divergence.locating import locate
from precision_align.storage.memory import MemorySink
from precision_align.workflows import comparing

DEPTH = 12
torch.set_num_threads(1)


class Net(nn.Module):
    def __init__(self, faulty=None, noisy=False):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(DEPTH))
        self.faulty, self.noisy = faulty, noisy
        for number, layer in enumerate(self.layers):
            layer.forward = self.wrap(number, layer.forward)

    def wrap(self, number, forward):
        def run(x):
            y = forward(x)
            y = (
                y * (1 + 1e-7 * torch.randn(y.shape, generator=torch.Generator().manual_seed(number)))
                if self.noisy
                else y
            )
            return y * 1.01 if number == self.faulty else y

        return run

    def forward(self, x):
        for layer in self.layers:
            x = x + torch.tanh(layer(x))
        return x


def record(model, sink=None, path=None):
    with (
        pa.capture(model, path, sink=sink, sources=("modules", "parameters", "gradients")) as recorder,
        recorder.step(),
    ):
        x = torch.randn(16, 32, generator=torch.Generator().manual_seed(1)).requires_grad_()
        model(x).square().mean().backward()


def keep(model):
    sink = MemorySink()
    record(model, sink)
    return sink.dump()


class Clock:
    """A second later each time that somebody asks."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        self.now += 1.0
        return self.now


def compare(candidate, seconds):
    return locate(Engine(keep(Net()), keep(candidate), deadline=Deadline(seconds, Clock())).run())


@pytest.mark.parametrize("faulty", [2, 9])
def test_the_first_origin_is_found_although_most_is_not_judged(faulty):
    found = compare(Net(faulty, noisy=True), 20)
    assert (found.verdict, found.first.scope) == (Verdict.DIVERGED, f"layers.{faulty}")
    late = [row for row in found.records if OUT_OF_TIME in row.note]
    assert found.is_partial
    assert len(late) > 15
    assert {row.status for row in late} == {Status.INCONCLUSIVE}
    assert any("the time budget was used up" in note and "layers" in note for note in found.notes)


def test_what_was_not_judged_is_never_aligned():
    found = compare(Net(noisy=True), 20)
    assert (found.verdict, found.first, found.is_partial) == (Verdict.NOT_COMPARABLE, None, True)
    assert "not judged in time" in found.notes[0]


def test_what_is_bit_equal_needs_no_time():
    found = compare(Net(), 3)
    assert (found.verdict, found.is_partial) == (Verdict.ALIGNED, False)


def test_enough_time_gives_what_no_budget_gives():
    long = compare(Net(7, noisy=True), 1e9)
    plain = locate(Engine(keep(Net()), keep(Net(7, noisy=True))).run())
    assert [(row.key, row.status, row.note) for row in long.records] == [
        (row.key, row.status, row.note) for row in plain.records
    ]
    assert long.first == plain.first


def test_a_second_run_goes_on_where_the_first_one_stopped(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(comparing, "Deadline", lambda seconds: Deadline(seconds, Clock()))
    record(Net(), path="reference")
    record(Net(noisy=True), path="candidate")
    command = ["compare", "reference", "candidate", "-o", "report.json"]
    assert main([*command, "--time-budget", "20"]) == 3
    report = json.loads((tmp_path / "report.json").read_text())
    left = sum(OUT_OF_TIME in record["note"] for record in report["records"])
    assert left > 0
    assert (tmp_path / "report.json.partial").exists()
    assert "kept in report.json.partial" in capsys.readouterr().err
    assert main(command) == 0
    assert "going on with" in capsys.readouterr().err
    assert not (tmp_path / "report.json.partial").exists()


def test_a_share_has_no_budget(capsys):
    assert main(["compare", "a", "b", "-o", "r.json", "--shard", "1/2", "--time-budget", "9"]) == 2
    assert "a share is measured whole" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["0", "-1", "soon", "inf", "nan"])
def test_a_budget_that_is_none_is_refused(text, capsys):
    assert main(["compare", "a", "b", "--time-budget", text]) == 2
    assert "seconds above 0" in capsys.readouterr().err
