"""Gradients of outputs that their own call uses, too: two shares, of the call and from outside."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from precision_align.recording.session import capture
from precision_align.storage.memory import MemorySink
from precision_align.workflows.comparing import compare

torch.set_num_threads(1)
X = torch.randn(1024, 8, generator=torch.Generator().manual_seed(0))


class Stop(torch.autograd.Function):
    """Passes values on and sends nothing back."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, g):
        return torch.zeros_like(g)


class Gate(nn.Module):
    """Returns a distribution, and weights that it computes from it."""

    def __init__(self, stops):
        super().__init__()
        self.weight, self.stops = nn.Parameter(torch.randn(4, 8)), stops

    def forward(self, x):
        share = functional.linear(x, self.weight).softmax(-1)
        weight = share.topk(2, -1)[0]
        weight = weight / weight.sum(-1, keepdim=True)
        return Stop.apply(weight) if self.stops else weight, share


class Mixture(nn.Module):
    """Uses both outputs of its gate. ``fault``: where a share of the distribution's gradient is lost, or "first"."""

    def __init__(self, fault=""):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.gate, self.fault = nn.Linear(8, 8), Gate(fault == "gate"), fault

    def forward(self, x):
        x = self.first(x) * (1.05 if self.fault == "first" else 1.0)
        weight, share = self.gate(x)
        spread = (share.detach() if self.fault == "caller" else share).square().mean()
        return (weight[:, :1] * x).square().mean() + spread


class Head(nn.Linear):
    """Adds a number and takes it off again, in one or in three parts: rounding shows much of it."""

    parts = 1

    def forward(self, x):
        y = super().forward(x)
        for _ in range(self.parts):
            y = y + 1e4 / self.parts
        return y - 1e4


class Headed(nn.Module):
    """Logits padded with a large number, next to which their differences are nothing, and their loss."""

    def __init__(self, parts=1):
        super().__init__()
        torch.manual_seed(0)
        self.head = Head(8, 6)
        self.head.parts = parts

    def forward(self, x):
        logits = torch.cat((self.head(x), torch.full((len(x), 2), -1e4)), -1)
        return {"loss": functional.cross_entropy(logits, torch.arange(len(x)) % 6), "logits": logits}


def record(module, more=0.0):
    sink = MemorySink()
    with capture(module, None, sink=sink) as recorder, recorder.step():
        out = module(X)
        loss = out if isinstance(out, torch.Tensor) else out["loss"] + more * out["logits"][:, 0].mean()
        loss.backward()
    return sink.dump()


def blame(report):
    return report.first.scope, report.first.site, report.first.phase


@pytest.mark.parametrize(
    ("fault", "place", "word"),
    [
        ("gate", ("gate", "module", "backward"), "the call's own share is zero or lost"),
        ("caller", ("", "inline", "backward"), "the caller's share is zero or lost"),
    ],
)
def test_a_lost_share_is_named(fault, place, word):
    report = compare(record(Mixture()), record(Mixture(fault)), replay=Mixture)
    assert blame(report) == place
    assert word in report.first.evidence


def test_a_difference_that_came_in_is_judged_by_both_shares():
    report = compare(record(Mixture()), record(Mixture("first")), replay=Mixture)
    assert (report.first.scope, report.first.phase) == ("", "forward")
    (row,) = [row for row in report.records if "gate/0" in row.key and row.key.endswith("gradient/output.1")]
    assert (row.status, row.evidence) == ("propagated", "replay")
    assert "each replayed" in row.note


def test_a_gradient_that_the_model_itself_sends_back_is_no_fault_of_the_loss_outside():
    report = compare(record(Headed()), record(Headed(parts=3)), replay=Headed)
    (row,) = [row for row in report.records if row.key.endswith("gradient/output.logits")]
    assert row.metrics["raw_over_max"] > 30 * report_largest(report, "output/logits")
    assert (row.status, row.evidence) == ("propagated", "replay")
    assert report.verdict == "aligned"


def test_what_another_loss_outside_adds_is_blamed():
    report = compare(record(Headed()), record(Headed(), more=0.1), replay=Headed)
    assert blame(report) == ("", "inputs", "backward")


def report_largest(report, place):
    return next(row.metrics["raw_over_max"] for row in report.records if row.key.endswith(place))
