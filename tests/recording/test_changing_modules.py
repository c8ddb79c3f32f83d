"""Modules that appear, are replaced or get their parameters while a run is recorded."""

from __future__ import annotations

import pytest
import torch
from torch import nn

pytestmark = pytest.mark.live


def test_modules_that_appear_while_running_are_followed_from_the_next_step(record):
    class Grows(nn.Module):
        def __init__(self):
            super().__init__()
            self.parts = nn.ModuleList()

        def forward(self, x):
            if not self.parts:
                self.parts.append(nn.Linear(2, 2))
            return self.parts[0](x)

    model = Grows()
    dump = record(model, lambda recorder: [model(torch.ones(1, 2)) for _ in range(2)])
    assert [(c.step, c.scope) for c in dump.calls] == [(0, ""), (1, "parts.0"), (1, "")]
    assert not model.parts[0]._forward_hooks
    assert [note for note in dump.notes if "'parts.0'" in note and "came or were replaced" in note]


def test_a_module_that_is_replaced_is_followed_and_its_lost_calls_are_said(record):
    class Replaces(nn.Module):
        def __init__(self):
            super().__init__()
            self.part = nn.Linear(2, 2)

        def forward(self, x):
            x = self.part(x)
            self.part = nn.Linear(2, 2)  # the old one is freed: its address may come again
            return self.part(x)

    model = Replaces()
    dump = record(model, lambda recorder: [model(torch.ones(1, 2)) for _ in range(20)])
    assert [(c.step, c.scope) for c in dump.calls] == [(n, s) for n in range(20) for s in ("part", "")]
    assert len([note for note in dump.notes if "'part'" in note and "replaced" in note]) == 1
    steady = nn.Sequential(nn.Linear(2, 2))
    assert not record(steady, lambda recorder: [steady(torch.ones(1, 2)) for _ in range(3)]).notes


@pytest.mark.filterwarnings("ignore:Lazy modules:UserWarning")  # torch 2.1
def test_lazy_modules(record):
    model = nn.Sequential(nn.LazyLinear(3))
    dump = record(model, lambda recorder: [model(torch.ones(1, 2)).sum().backward() for _ in range(2)])
    parameters = [r for r in dump.records if r.key.source == "parameters" and r.key.role == "parameter"]
    assert {r.reason for r in parameters if r.key.step == 0} == {"not initialised yet (a lazy module)"}
    assert {r.shape for r in parameters if r.key.step == 1} == {(3, 2), (3,)}
