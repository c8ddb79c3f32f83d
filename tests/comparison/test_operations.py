"""Operators and functions of two runs: what they name, what they cover, what they judge alone."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from precision_align.core.records import RunInfo
from precision_align.recording.session import capture
from precision_align.storage.memory import MemorySink
from precision_align.workflows.comparing import compare

pytestmark = pytest.mark.live

MODULES = ("modules", "gradients", "parameters", "optimizer")
LINES = {}


class Net(nn.Module):
    """Inline code, a module called past its hooks, one whose weight alone is used."""

    def __init__(self, fault=""):
        super().__init__()
        torch.manual_seed(0)
        self.fault = fault
        self.first, self.past, self.bare, self.last = (nn.Linear(8, 8) for _ in range(4))

    def forward(self, x):
        x = self.first(x)
        x = self.past.forward(x * 1.0)
        if self.fault == "past":
            x = x * 1.01
        x = F.gelu(x, approximate="tanh" if self.fault == "gelu" else "none")
        x = x + F.linear(x, self.bare.weight * (1.01 if self.fault == "bare" else 1.0), self.bare.bias)
        x = shift(x) if self.fault == "backward" else x
        x = torch.sigmoid(x) * 1.0 if self.fault == "replaced" else torch.tanh(x) * 1.0
        return self.last(F.layer_norm(x, (8,), eps=1e-3 if self.fault == "eps" else 1e-5))


class Shift(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 1.0

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 1.01


shift = Shift.apply


def record(sources, fault="", noise=0.0, model=None):
    model = Net(fault) if model is None else model
    sink = MemorySink(RunInfo(run="test", created="", rank=0, world=1, device="cpu"))
    x = torch.randn(16, 8, generator=torch.Generator().manual_seed(1))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with capture(model, None, sink=sink, sources=sources, optimizer=optimizer) as recorder, recorder.step():
        model(x * (1 + noise)).square().sum().backward()
        optimizer.step()
    return sink.dump()


@pytest.fixture(scope="module")
def references():
    return {name: record((*MODULES, name)) for name in ("operators", "functions")} | {
        f"{name} alone": record((name, "gradients")) for name in ("operators", "functions")
    }


def line_of(text):
    import inspect

    lines, start = inspect.getsourcelines(Net.forward)
    return start + next(number for number, line in enumerate(lines) if text in line)


@pytest.mark.parametrize(
    ("kind", "fault", "op", "text"),
    [
        ("operators", "gelu", "aten.gelu.default", "F.gelu"),
        ("functions", "gelu", "torch.nn.functional.gelu", "F.gelu"),
        ("operators", "eps", "aten.native_layer_norm.default", "layer_norm"),
        ("functions", "eps", "torch.nn.functional.layer_norm", "layer_norm"),
    ],
)
def test_inline_code_that_diverges_is_named_by_its_operation_and_line(references, kind, fault, op, text):
    report = compare(references[kind], record((*MODULES, kind), fault))
    first = report.first
    assert (first.scope, first.site, first.phase, first.op) == ("", "inline", "forward", op)
    assert first.source == f"{__file__}:{line_of(text)}"
    assert "first operation that differs on equal inputs" in first.evidence
    plain = compare(references[kind], record(MODULES, fault)).first
    assert (plain.scope, plain.site, plain.op) == ("", "inline", "Net")


@pytest.mark.parametrize("kind", ["operators", "functions"])
@pytest.mark.parametrize("fault", ["gelu", "eps", "bare", "past", "backward"])
def test_without_modules_the_verdict_rests_on_operations(references, kind, fault):
    report = compare(references[f"{kind} alone"], record((kind, "gradients"), fault))
    assert report.verdict == "diverged"
    assert (report.first.step, report.first.scope) == (0, "")
    expected = {
        "operators": {"gelu": "gelu", "eps": "layer_norm", "bare": "mul", "past": "mul", "backward": "mul"},
        # multiplications are no recorded functions: blamed is what gets their results
        "functions": {"gelu": "gelu", "eps": "layer_norm", "bare": "linear", "past": "gelu", "backward": "linear"},
    }[kind]
    assert expected[fault] in report.first.op
    assert report.first.phase == ("backward" if fault == "backward" else "forward")
    assert report.coverage["forward"].recorded > 3


@pytest.mark.parametrize("kind", ["operators", "functions", "operators alone", "functions alone"])
@pytest.mark.parametrize("noise", [0.0, 3e-7])
def test_rounding_and_equal_runs_blame_nothing(references, kind, noise):
    sources = (kind.split()[0], "gradients") if "alone" in kind else (*MODULES, kind)
    report = compare(references[kind], record(sources, noise=noise))
    assert report.verdict == "aligned" or (noise and report.first.site == "inputs")
    assert not [row for row in report.records if row.status == "fail" and row.site != "inputs"]
    note = next(note for note in report.notes if "operator and function calls" in note)
    judged, recorded = (int(word) for word in note.split(" operator")[0].split(" of "))
    assert judged == recorded > 3


@pytest.mark.parametrize(
    ("kind", "op"), [("operators", "aten.addmm.default"), ("functions", "torch.nn.functional.linear")]
)
def test_modules_never_called_show_in_coverage_by_the_operations_on_their_weights(references, kind, op):
    report = compare(references[kind], record((*MODULES, kind)))
    rows = [row for row in report.records if row.scope == "past" and row.phase == "forward" and row.role == "output"]
    assert {(row.status, row.op, row.site) for row in rows} == {("pass", op, "module")}
    assert not [
        row for row in compare(references[kind], record(MODULES)).records if row.scope == "past" and row.op == op
    ]
    faulty = compare(references[kind], record((*MODULES, kind), "gelu"))
    rows = [row for row in faulty.records if row.scope == "past" and row.role == "output" and row.phase == "forward"]
    assert {row.status for row in rows} == {"pass"}  # it stands before the fault


def test_an_operator_in_the_place_of_another_is_named_and_compared(references):
    report = compare(references["operators"], record((*MODULES, "operators"), "replaced"))
    assert "the candidate runs aten.sigmoid.default where the reference runs aten.tanh.default" in report.notes
    assert report.first.op == "aten.sigmoid.default"


def test_a_passing_replay_outweighs_raw_operations(references):
    """Where the whole call is judged by replay and passes, its operations cannot make it fail."""
    model = Net()
    x = torch.randn(16, 8, generator=torch.Generator().manual_seed(1))
    model(x)
    report = compare(references["operators"], record((*MODULES, "operators"), "past"), replay=Net("past"))
    rows = [row for row in report.records if row.scope == "bare" and row.op.startswith("aten.")]
    assert rows
    assert not [row for row in rows if row.status == "fail"]


def test_operations_of_a_leaf_are_named_in_the_evidence(references):
    model = Net()
    model.last.forward = lambda x: F.linear(x, model.last.weight) * 1.01 + model.last.bias
    report = compare(references["operators"], record((*MODULES, "operators"), model=model))
    assert (report.first.scope, report.first.site) == ("last", "module")
    assert report.first.op == "Linear"
