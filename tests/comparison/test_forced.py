"""A candidate that was forced from its reference: every fault stands alone, and none is made by the forcing."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from precision_align.core.records import RunInfo
from precision_align.recording.session import capture
from precision_align.storage.memory import MemorySink
from precision_align.workflows.comparing import compare

pytestmark = pytest.mark.live


class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, forward, backward):
        ctx.by = backward
        return x * forward

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.by, None, None


class Net(nn.Module):
    """``faults``: place -> (factor forward, factor backward)."""

    def __init__(self, faults, noise=0.0):
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b, self.c = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 2)
        self.faults, self.noise = faults, noise
        for name in ("a", "c"):
            if name in faults:
                layer = getattr(self, name)
                layer.forward = lambda x, f=layer.forward, by=faults[name]: Scale.apply(f(x), *by)

    def forward(self, x):
        x = torch.tanh(self.b(torch.tanh(self.a(x)))) * (1 + self.noise)
        if "inline" in self.faults:
            x = Scale.apply(x, *self.faults["inline"])
        return self.c(x)


def run(faults=None, force=None, noise=0.0, name="test", lr=0.1):
    model = Net(faults or {}, noise)
    sink = MemorySink(RunInfo(run=name, created="", rank=0, world=1, device="cpu"))
    optimizer = torch.optim.SGD(model.parameters(), lr, momentum=0.9)
    generator = torch.Generator().manual_seed(1)
    with capture(model, None, sink=sink, optimizer=optimizer, force=force) as recorder:
        for _ in range(2):
            with recorder.step():
                optimizer.zero_grad()
                model(torch.randn(5, 6, generator=generator)).square().sum().backward()
                optimizer.step()
    return sink.dump()


@pytest.fixture(scope="module")
def reference():
    return run()


def places(report):
    return [(found.scope, str(found.phase)) for found in report.frontier]


def test_each_fault_stands_alone(reference):
    faults = {"a": (1.01, 1.0), "inline": (1.02, 1.02), "c": (1.03, 1.0)}
    report = compare(reference, run(faults, force=reference))
    assert {place for place in places(report) if place[1] == "forward"} == {(n, "forward") for n in ("a", "", "c")}
    assert [place for place in places(report) if place[1] == "backward"] == [("", "backward")]
    assert all("forced comparison" in found.evidence or "replay" in found.evidence for found in report.frontier)
    assert {row.evidence for row in report.records if row.status == "fail" and row.site == "inline"} == {"forced"}


@pytest.mark.parametrize(("place", "scope"), [("a", "a"), ("inline", ""), ("c", "c")])
def test_a_backward_fault_is_found_in_place(reference, place, scope):
    report = compare(reference, run({place: (1.0, 1.01)}, force=reference))
    assert (report.first.scope, report.first.phase) == (scope, "backward")
    assert places(report) == [(scope, "backward")]


@pytest.mark.parametrize("noise", [0.0, 2e-7])
def test_forcing_itself_and_rounding_make_no_fault(reference, noise):
    report = compare(reference, run(force=reference, noise=noise))
    assert report.verdict == "aligned", report.first
    assert report.candidate["forced"]


def test_a_wrong_update_is_one_of_its_own(reference):
    report = compare(reference, run(force=reference, lr=0.11))
    assert {(found.site, str(found.phase)) for found in report.frontier} == {("optimizer", "step")}


def test_another_reference_than_the_one_forced_from_is_said(reference):
    report = compare(run(name="other"), run(force=reference))
    assert any("forced from another run" in note for note in report.notes)
    assert not any("forced from another run" in note for note in compare(reference, run(force=reference)).notes)
