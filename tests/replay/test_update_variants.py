"""Faults of an optimizer's step and of gradients on their way to it: named, and not named for one another."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import nn

import precision_align as pa

SETTINGS = {"lr": 1e-2, "weight_decay": 0.3}


class Adam(torch.optim.AdamW):
    """AdamW whose last step is done otherwise."""

    def __init__(self, parameters, fault) -> None:
        super().__init__(parameters, **SETTINGS)
        self.fault = fault

    @torch.no_grad()
    def step(self, closure=None):
        (group,) = self.param_groups
        for p in group["params"]:
            state = self.state[p]
            if not state:
                state.update(step=torch.zeros(()), exp_avg=torch.zeros_like(p), exp_avg_sq=torch.zeros_like(p))
            state["step"] += 1
            m = state["exp_avg"].lerp_(p.grad, 0.1)
            v = state["exp_avg_sq"].mul_(0.999).addcmul_(p.grad, p.grad, value=0.001)
            t = state["step"].item() + (3 if self.fault == "counter" else 0)
            right = self.fault != "correction"
            m, v = (m / (1 - 0.9**t), v / (1 - 0.999**t)) if right else (m, v)
            root = (v + 1e-5).sqrt() if self.fault == "eps inside" else v.sqrt() + 1e-8
            decay = 0 if self.fault == "no decay" else 1e-2 * 0.3
            p.mul_(1 - decay).sub_(1e-2 * (0.9 if self.fault == "rate" else 1) * m / root)


def make(fault):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 4))
    if fault == "coupled":
        return model, torch.optim.Adam(model.parameters(), **SETTINGS)
    if fault in ("", "four ranks"):
        return model, torch.optim.AdamW(model.parameters(), **SETTINGS)
    if fault == "skipped":
        return model, torch.optim.AdamW(model.parameters(), **{**SETTINGS, "lr": 0.0})
    return model, Adam(model.parameters(), fault)


FAULTS = {
    "coupled": ("decay", "coupled"),
    "no decay": ("weight_decay", "no weight decay"),
    "rate": ("learning rate", "0.9"),
    "skipped": ("not updated", "skipped"),
    "correction": ("bias correction", "no bias correction"),
    "counter": ("bias correction", "step 4 instead of 1"),
    "eps inside": ("eps inside", "1e-05"),
    "four ranks": ("scaled", "a constant, 4: a number of ranks"),
}


@functools.cache
def explain(fault):
    (reference, ours), (candidate, theirs) = make(""), make(fault)
    data = torch.randn(32, 12, generator=torch.Generator().manual_seed(1))

    def step(module, batch):
        module.zero_grad()
        module(batch).square().mean().backward()
        if module is candidate and fault == "four ranks":
            for parameter in module.parameters():
                parameter.grad *= 4
        (theirs if module is candidate else ours).step()

    first = pa.lockstep(reference, candidate, data, step=step, optimizers=(ours, theirs), steps=1).first
    assert first is not None
    assert first.phase == "step"
    return first.explanations[:3]


@pytest.mark.parametrize("fault", FAULTS)
def test_the_fault_of_a_step_is_named_first_and_no_other_is(fault):
    name, text = FAULTS[fault]
    found = explain(fault)
    assert found[0].name == name, found
    assert text in found[0].text
    for other, (other_name, other_text) in FAULTS.items():
        if other != fault:
            assert not any(
                item.name == other_name and other_text in item.text and item.residual < 0.02 for item in found
            )
