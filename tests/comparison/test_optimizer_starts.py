"""What optimizers start from and what another build of one may be off by."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import precision_align as pa

RATE, DECAY = 1e-2, 0.1


def build() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))


class Adam(torch.optim.Optimizer):
    """AdamW by hand, with the names of state that torch has; ``rate``: by how much its steps are too large."""

    def __init__(self, parameters, rate: float = 1.0) -> None:
        super().__init__(parameters, {"lr": RATE, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": DECAY})
        self.rate = rate

    @torch.no_grad()
    def step(self):
        for p in self.param_groups[0]["params"]:
            state = self.state[p]
            if not state:
                state.update(step=torch.zeros(()), exp_avg=torch.zeros_like(p), exp_avg_sq=torch.zeros_like(p))
            state["step"] += 1
            state["exp_avg"].mul_(0.9).add_(p.grad, alpha=0.1)
            state["exp_avg_sq"].mul_(0.999).addcmul_(p.grad, p.grad, value=0.001)
            root = (state["exp_avg_sq"] / (1 - 0.999 ** state["step"])).sqrt() + 1e-8
            p.mul_(1 - RATE * DECAY).sub_(self.rate * RATE * state["exp_avg"] / (1 - 0.9 ** state["step"]) / root)


class Plain:
    """No optimizer of torch, no state of its names. ``power``: divides by the gradient's own size, as Adam does."""

    def __init__(self, parameters, factor: float = 1.0) -> None:
        self.parameters, self.factor = list(parameters), factor

    def step(self):
        with torch.no_grad():
            for p in self.parameters:
                p.sub_(self.factor * RATE * p.grad / (p.grad.abs() + 1e-12))


def train(module, inputs):
    module.zero_grad()
    module(*inputs).square().mean().backward()
    module.optimizer.step()


def judge(reference, candidate, change=None, other_order=False) -> pa.Report:
    """One step of both; ``change(optimizer, model)`` acts on the candidate after an unrecorded first step."""
    models = [build(), build()]
    torch.manual_seed(1)
    inputs = (torch.randn(12, 8),)
    for model, make in zip(models, (reference, candidate)):
        model.optimizer = make(model.parameters())
        if change is not None:
            train(model, inputs)
    if change is not None:
        change(models[1].optimizer, models[1])
    if other_order:
        models[1][0].forward = lambda x, layer=models[1][0]: sum(
            (a @ b.t() for a, b in zip(x.split(2, -1), layer.weight.split(2, -1))), layer.bias
        )
    optimizers = (models[0].optimizer, models[1].optimizer)
    return pa.lockstep(*models, inputs, step=train, optimizers=optimizers, steps=1)


def stock(parameters):
    return torch.optim.AdamW(parameters, lr=RATE, weight_decay=DECAY)


def test_another_build_of_the_optimizer_is_replayed_by_the_references_class():
    report = judge(stock, Adam, other_order=True)
    assert (report.verdict, report.first) == ("aligned", None)
    assert any(row.phase == "step" and row.evidence == "replay" for row in report.records)


def test_a_fault_of_another_build_is_found():
    first = judge(stock, lambda parameters: Adam(parameters, 1.02), other_order=True).first
    assert first is not None
    assert (first.scope, first.site) == ("0", "optimizer")


def test_an_update_that_divides_by_the_gradient_is_no_fault_of_the_step():
    """Where a gradient is nearly zero its sign is noise, and so is the whole update."""
    report = judge(Plain, Plain, other_order=True)
    assert report.first is None


def test_a_fault_is_still_seen_where_the_gradients_agree():
    first = judge(Plain, lambda parameters: Plain(parameters, 1.1), other_order=True).first
    assert first is not None
    assert first.site == "optimizer"


def clear(optimizer, model):
    optimizer.state[model[2].weight]["exp_avg"].zero_()


def count_anew(optimizer, model):
    for state in optimizer.state.values():
        state["step"].zero_()


@pytest.mark.parametrize(("change", "scope", "name"), [(clear, "2", "exp_avg"), (count_anew, "0", "step")])
def test_state_that_a_checkpoint_lost_is_named(change, scope, name):
    first = judge(stock, stock, change).first
    assert first is not None
    assert (first.scope, first.site, first.phase) == (scope, "optimizer", "step")
    assert f"optimizer state {name}" in first.evidence


def test_equal_state_at_the_start_passes():
    assert judge(stock, stock, lambda optimizer, model: None).verdict == "aligned"
