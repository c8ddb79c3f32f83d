"""The cure test: the suspect's outputs overwritten by the reference's, in a second forward of the candidate."""

from __future__ import annotations

import torch
from torch import nn

import precision_align as pa


class Scaled(nn.Linear):
    def forward(self, x):
        return super().forward(x) * 1.01


class Norm(nn.BatchNorm1d):
    """Writes into a buffer in each forward."""


def make(*faulty: int) -> nn.Sequential:
    torch.manual_seed(0)
    kinds = [Scaled if number in faulty else nn.Linear for number in range(3)]
    return nn.Sequential(kinds[0](8, 16), Norm(16), kinds[1](16, 16), nn.GELU(), kinds[2](16, 4))


def train(module, batch):
    module(batch).square().mean().backward()


def find_note(report) -> str:
    notes = [note for note in report.notes if note.startswith("cure test")]
    return notes[0] if notes else ""


DATA = torch.randn(32, 8, generator=torch.Generator().manual_seed(1))


def test_overwriting_the_only_cause_makes_the_outputs_agree():
    report = pa.lockstep(make(), make(1), DATA)
    assert report.first.scope == "2"
    assert "in place of those of 2, the model's outputs agree" in find_note(report)
    assert "only cause" in find_note(report)


def test_another_cause_stays_and_is_not_denied():
    report = pa.lockstep(make(), make(1, 2), DATA)
    assert report.first.scope == "2"
    assert "do not agree" in find_note(report)


def test_without_a_divergence_or_in_the_root_there_is_nothing_to_cure():
    assert find_note(pa.lockstep(make(), make(), DATA)) == ""
    assert find_note(pa.lockstep(nn.Linear(8, 2), Scaled(8, 2), DATA)) == ""


def test_the_candidate_is_left_as_the_runs_left_it():
    cured, plain = make(1), make(1)
    pa.lockstep(make(), cured, DATA, step=train)
    train(plain, DATA)
    for (name, left), (_, right) in zip(cured.state_dict().items(), plain.state_dict().items()):
        assert torch.equal(left, right), name
    for left, right in zip(cured.parameters(), plain.parameters()):
        assert torch.equal(left.grad, right.grad)


def test_a_search_for_the_cause_that_breaks_costs_the_guess_alone(monkeypatch):
    def break_down(*_, **__):
        raise ValueError("odd code")

    monkeypatch.setattr("precision_align.divergence.locating.explain", break_down)
    report = pa.lockstep(make(), make(1), DATA)
    assert (report.first.scope, report.first.explanations) == ("2", ())
    assert any("cause was not searched" in note and "odd code" in note for note in report.notes)
