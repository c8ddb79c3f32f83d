"""Activation checkpointing: what is recomputed must be what was computed."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import precision_align as pa


class Act(nn.Module):
    """``fault``: what the second execution gets wrong."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        self.fault, self.calls = fault, 0

    def forward(self, x):
        self.calls += 1
        if self.fault and self.calls > 1:
            x = x + (x.detach().roll(1, 0) - x.detach())
        return torch.tanh(x)


class Layer(nn.Module):
    def __init__(self, fault: str) -> None:
        super().__init__()
        self.up, self.act, self.down = nn.Linear(8, 16), Act(fault if fault == "act" else ""), nn.Linear(16, 8)
        self.fault, self.calls = fault, 0

    def forward(self, x):
        self.calls += 1
        y = self.up(x)
        if self.fault == "inline" and self.calls > 1:
            y = y + 0.5
        return self.down(self.act(y))


class Net(nn.Module):
    def __init__(self, fault: str, way: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers, self.way = nn.ModuleList(Layer(fault if n == 1 else "") for n in range(3)), way

    def forward(self, x):
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=self.way == "reentrant") if self.way else layer(x)
        return x


def judge(fault: str, way: str) -> pa.Report:
    torch.manual_seed(1)
    return pa.lockstep(
        Net("", ""),
        Net(fault, way),
        (torch.randn(6, 8).requires_grad_(),),
        step=lambda module, inputs: module(*inputs).square().mean().backward(),
    )


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("way", ["plain", "reentrant"])
@pytest.mark.parametrize(
    ("fault", "scope", "site"), [("act", "layers.1.act", "module"), ("inline", "layers.1", "inline")]
)
def test_a_wrong_recomputation_is_blamed_where_it_starts(fault, scope, site, way):
    first = judge(fault, way).first
    assert first is not None
    assert (first.scope, first.site, first.phase) == (scope, site, "backward")
    assert "recomputed otherwise" in first.evidence


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("way", ["plain", "reentrant"])
def test_a_right_recomputation_passes_and_is_counted(way):
    report = judge("", way)
    assert (report.verdict, report.first) == ("aligned", None)
    again = [row for row in report.records if row.note.startswith("recomputed")]
    assert again
    assert {str(row.status) for row in again} == {"pass"}
