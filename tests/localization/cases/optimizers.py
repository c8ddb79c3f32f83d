"""Faults that only the optimizer's step shows."""

from __future__ import annotations

import torch
from localization_cases import Pair, case
from torch import nn


class Adam(torch.optim.Optimizer):
    """AdamW by hand with faults; ``only``: the index of the parameter that is concerned (-1: all)."""

    def __init__(self, parameters, fault: str = "", only: int = -1) -> None:
        super().__init__(parameters, {"lr": 1e-2, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.1})
        self.fault, self.only = fault, only

    @torch.no_grad()
    def step(self):
        group = self.param_groups[0]
        beta1, beta2 = group["betas"]
        for index, p in enumerate(group["params"]):
            fault = self.fault if self.only in (-1, index) else ""
            state = self.state[p]
            if not state:
                state.update(step=torch.zeros(()), exp_avg=torch.zeros_like(p), exp_avg_sq=torch.zeros_like(p))
            state["step"] += 1
            g = p.grad
            if fault == "coupled_decay":
                g = g + group["weight_decay"] * p
            elif fault != "no_decay":
                p.mul_(1 - group["lr"] * group["weight_decay"])
            m, v, t = state["exp_avg"], state["exp_avg_sq"], state["step"]
            m.mul_(beta1).add_(g, alpha=1 - beta1)
            v.mul_(beta2).addcmul_(g, g, value=1 - (0.99 if fault == "beta" else beta2))
            c1, c2 = (1.0, 1.0) if fault == "no_correction" else (1 - beta1**t, 1 - beta2**t)
            if fault == "eps_inside":
                update = (m / c1) / (v / c2 + group["eps"]).sqrt()
            elif fault == "eps":
                update = (m / c1) / ((v / c2).sqrt() + 1e-3)
            else:
                update = (m / c1) / ((v / c2).sqrt() + group["eps"])
            if fault == "bf16_state":
                state["exp_avg_sq"] = v.bfloat16().float()
            if fault == "sign":
                update = -update
            if fault == "lost":
                continue
            p.add_(update, alpha=-group["lr"] * (1.01 if fault == "lr" else 1.0))


def _make(fault: str, only: int = -1) -> Pair:
    torch.manual_seed(120)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.LayerNorm(16), nn.Linear(16, 3))
    model.opt = Adam(model.parameters(), fault, only)
    return model, (torch.randn(10, 8),)


def _register(fault: str, first: str, only: int = -1) -> None:
    def build(faulty: bool) -> Pair:
        return _make(fault if faulty else "", only)

    build.__name__ = f"adam_{fault}" + ("_of_one" if only >= 0 else "")
    case(first, "optimizer reports", site="optimizer", phase="step")(build)


for _fault in ("no_correction", "beta", "eps", "coupled_decay", "no_decay", "lr", "sign", "bf16_state"):
    _register(_fault, "0")
for _fault in ("lost", "sign", "no_correction"):
    _register(_fault, "3", only=4)


def _register_stock(name: str, first: str | None, make) -> None:
    def build(faulty: bool) -> Pair:
        torch.manual_seed(121)
        model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.LayerNorm(16), nn.Linear(16, 3))
        model.opt = make(model, faulty)
        return model, (torch.randn(10, 8),)

    build.__name__ = name
    case(first, "optimizer settings", site="optimizer", phase="step")(build)


_register_stock("sgd_nesterov", "0", lambda m, f: torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9, nesterov=f))
_register_stock("learning_rate", "0", lambda m, f: torch.optim.AdamW(m.parameters(), lr=1.1e-2 if f else 1e-2))
_register_stock("decay", "0", lambda m, f: torch.optim.AdamW(m.parameters(), lr=1e-2, weight_decay=0.02 if f else 0.1))
_register_stock(
    "adam_for_adamw",
    "0",
    lambda m, f: (torch.optim.Adam if f else torch.optim.AdamW)(m.parameters(), lr=1e-2, weight_decay=0.1),
)
_register_stock("amsgrad_same_at_first", None, lambda m, f: torch.optim.AdamW(m.parameters(), lr=1e-2))
_register_stock(
    "layer_not_given", "3", lambda m, f: torch.optim.SGD(list(m.parameters())[:4] if f else m.parameters(), lr=0.1)
)
_register_stock(
    "hand_written_adam",
    None,
    lambda m, f: Adam(m.parameters()) if f else torch.optim.AdamW(m.parameters(), lr=1e-2, weight_decay=0.1),
)
_register_stock("maximize", "0", lambda m, f: torch.optim.SGD(m.parameters(), lr=0.1, maximize=f))


class Plain:
    """Not a torch optimizer: only a step."""

    def __init__(self, parameters, fault: str) -> None:
        self.parameters, self.fault = list(parameters), fault

    def step(self):
        with torch.no_grad():
            for p in self.parameters:
                if self.fault == "transposed" and p.dim() == 2 and not p.is_contiguous():
                    p.contiguous().sub_(0.1 * p.grad)
                else:
                    p.sub_(0.1 * p.grad)
                if self.fault == "stale_grad":
                    continue
                p.grad = None


@case(None, "an optimizer that is no torch optimizer", phase="step")
def plain_optimizer(faulty: bool) -> Pair:
    torch.manual_seed(122)
    model = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 2))
    model.opt = Plain(model.parameters(), "")
    return model, (torch.randn(10, 8),)


class Clipping:
    """Clips before it steps; ``fault``: one parameter is missing from the norm."""

    def __init__(self, model, fault: bool) -> None:
        self.inner, self.parameters, self.fault = (
            torch.optim.SGD(model.parameters(), lr=0.1),
            list(model.parameters()),
            fault,
        )

    def step(self):
        counted = self.parameters[1:] if self.fault else self.parameters
        norm = torch.stack([p.grad.norm() for p in counted]).norm()
        for p in self.parameters:
            p.grad.mul_(0.1 / norm)
        self.inner.step()
        self.inner.zero_grad()


@case("0", "a parameter missing from the gradient norm", site="optimizer", phase="step")
def clipping_misses_a_parameter(faulty: bool) -> Pair:
    torch.manual_seed(123)
    model = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 2))
    model.opt = Clipping(model, faulty)
    return model, (torch.randn(10, 8),)
