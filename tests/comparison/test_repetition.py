"""Further runs of the same program: what differs from itself is found, and is told from a fault."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from precision_align.cli.app import main
from precision_align.recording.session import capture
from precision_align.storage.memory import MemorySink
from precision_align.workflows.comparing import compare

torch.set_num_threads(1)


class Factor(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, forward, backward):
        ctx.by = backward
        return x * forward

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.by, None, None


class Layer(nn.Linear):
    """``race``, ``race_back``: relative size of what differs from run to run; ``fault``: what every run has."""

    def __init__(self, run, race=0.0, race_back=0.0, fault=0.0):
        super().__init__(6, 6)
        generator = torch.Generator().manual_seed(run)
        self.forward_by = (1 + fault) * (1 + race * torch.randn(6, generator=generator))
        self.backward_by = 1 + race_back * torch.randn(6, generator=generator)

    def forward(self, x):
        return Factor.apply(super().forward(x), self.forward_by, self.backward_by)


class Net(nn.Module):
    def __init__(self, run=0, **quirks):
        super().__init__()
        torch.manual_seed(0)
        for name in "abc":
            setattr(self, name, Layer(run, **quirks.get(name, {})))
        self.norm = nn.LayerNorm(6)

    def forward(self, x):
        return self.c(self.norm(torch.tanh(self.b(torch.tanh(self.a(x))))))


class RacingStep(torch.optim.SGD):
    noise = 0.0

    def step(self, closure=None):
        for parameter in self.param_groups[0]["params"]:
            parameter.grad = parameter.grad * (1 + self.noise)
        return super().step(closure)


def run(number=0, folder=None, step_noise=0.0, **quirks):
    model, sink = Net(number, **quirks), None if folder else MemorySink()
    optimizer = RacingStep(model.parameters(), lr=0.1)
    optimizer.noise = step_noise * number
    generator = torch.Generator().manual_seed(1)
    with capture(model, folder, sink=sink, optimizer=optimizer) as recorder:
        for _ in range(2):
            with recorder.step():
                optimizer.zero_grad()
                model(torch.randn(9, 6, generator=generator)).square().mean().backward()
                optimizer.step()
    return str(folder) if folder else sink.dump()


@pytest.fixture(scope="module")
def reference():
    return run()


def judge(reference, count=2, code=Net, **quirks):
    candidate, *further = (run(number, **quirks) for number in range(1, count + 1))
    return compare(reference, candidate, again=further, replay=code)


def list_kinds(report):
    return [(str(found.kind), found.scope, str(found.phase)) for found in report.frontier]


def test_equal_runs_are_said_to_be_equal(reference):
    report = judge(reference, count=3)
    assert (report.verdict, list_kinds(report)) == ("aligned", [])
    assert any(note.startswith("the candidate: 2 further runs agree bit for bit in all") for note in report.notes)


def test_noise_of_rounding_is_a_finding_and_no_divergence(reference):
    report = judge(reference, b={"race": 2e-7})
    assert (report.verdict, report.first) == ("aligned", None)
    assert list_kinds(report) == [("nondeterministic", "b", "forward")]
    assert any("is nondeterministic: Layer in b (forward)" in note for note in report.notes)


def test_a_race_beyond_rounding_diverges_as_what_it_is(reference):
    report = judge(reference, b={"race": 1e-3})
    assert (report.verdict, list_kinds(report)[0]) == ("diverged", ("nondeterministic", "b", "forward"))
    assert not any(kind == "origin" for kind, *_ in list_kinds(report))
    assert "differs from itself" in str(report)


@pytest.mark.parametrize("where", ["b", "c"])
def test_a_fault_is_found_beside_it_and_inside_it(reference, where):
    quirks = {"b": {"race": 2e-7}}
    quirks[where] = {**quirks.get(where, {}), "fault": 0.01}
    report = judge(reference, **quirks)
    assert list_kinds(report)[0] == ("origin", where, "forward")
    found = {row.scope for row in report.records if "self_over_max" in row.metrics and row.phase == "forward"}
    assert found == {"b"}


def test_a_race_and_a_larger_fault_elsewhere(reference):
    report = judge(reference, a={"race": 1e-3}, c={"fault": 0.01})
    assert list_kinds(report)[:2] == [("origin", "c", "forward"), ("nondeterministic", "a", "forward")]


def test_backward_and_step(reference):
    report = judge(reference, b={"race_back": 1e-2})
    assert (report.verdict, list_kinds(report)[0]) == ("diverged", ("nondeterministic", "b", "backward"))
    report = judge(reference, step_noise=5e-2)
    assert (report.first.kind, report.first.phase) == ("nondeterministic", "step")


def test_without_code_a_difference_within_the_noise_is_no_origin(reference):
    """Raw evidence alone blames what enlarges a difference; a further run shows the same difference."""
    raw = compare(reference, run(1, b={"race": 3e-4}))
    assert (raw.first.kind, raw.first.scope) == ("origin", "b")
    report = judge(reference, code=None, b={"race": 3e-4})
    assert (report.first.kind, report.first.scope) == ("nondeterministic", "b")


def test_the_reference_may_be_repeated_too(reference):
    report = compare(reference, run(), reference_again=[run(1, a={"race": 2e-7})])
    assert report.verdict == "aligned"
    assert any(note.startswith("the reference is nondeterministic: Layer in a") for note in report.notes)


def test_from_the_command_line(tmp_path, capsys):
    reference = run(folder=tmp_path / "reference")
    first, second = (run(number, tmp_path / str(number), b={"race": 1e-3}) for number in (1, 2))
    page = tmp_path / "report.html"
    assert main(["compare", reference, first, "--again", second, "-o", str(page)]) == 1
    assert "the candidate differs from itself" in capsys.readouterr().out
    assert "nondeterministic" in page.read_text("utf-8")


def test_a_further_run_is_another_one(tmp_path, capsys):
    paths = [str(tmp_path / name) for name in ("reference", "candidate")]
    for path in paths:
        model = Net()
        with capture(model, path) as recorder, recorder.step():
            model(torch.ones(2, 6))
    for option, own, other in (("--again", paths[1], paths[0]), ("--reference-again", paths[0], paths[1])):
        for given in (own, other):
            assert main(["compare", *paths, option, given]) == 2
            assert "further run" in capsys.readouterr().err
