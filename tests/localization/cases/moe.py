"""Mixture of experts: routing, capacity, combination, auxiliary loss."""

from __future__ import annotations

import torch
from localization_cases import Pair, case
from torch import nn
from torch.nn import functional

D, E = 16, 6


class Router(nn.Module):
    def __init__(self, fault: str) -> None:
        super().__init__()
        self.weight, self.fault = nn.Parameter(torch.randn(E, D) * 0.4), fault
        self.register_buffer("bias", torch.linspace(-0.2, 0.2, E))

    def forward(self, x):
        logits = functional.linear(x, self.weight)
        probability = logits.sigmoid() if self.fault == "no_softmax" else logits.softmax(-1)
        scores = probability if self.fault == "no_bias" else probability + self.bias
        index = scores.topk(2, -1)[1]
        if self.fault == "bottom":
            index = scores.topk(2, -1, largest=False)[1]
        weight = probability.gather(-1, index)
        if self.fault != "not_renormalised":
            weight = weight / weight.sum(-1, keepdim=True)
        counts = torch.bincount(index.flatten(), minlength=E)
        if self.fault == "histogram":
            counts = torch.bincount(index.flatten() + 1, minlength=E)[:E]
        return weight, index, counts


class Layer(nn.Module):
    """``fault``: "router:what" or "layer:what"."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        part, _, what = fault.partition(":")
        self.router, self.fault = Router(what if part == "router" else ""), what if part == "layer" else ""
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(D, D), nn.SiLU(), nn.Linear(D, D)) for _ in range(E))
        self.shared = nn.Linear(D, D)

    def forward(self, x):
        weight, index, counts = self.router(x)
        y = torch.zeros_like(x)
        for n in reversed(range(E)) if self.fault == "order" else range(E):
            token, slot = (index == n).nonzero(as_tuple=True)
            if self.fault == "capacity":
                token, slot = token[:4], slot[:4]
            out = self.experts[n](x[token])
            if self.fault != "unweighted":
                out = out * weight[token, slot, None]
            y = y.index_copy(0, token, out) if self.fault == "overwrites" else y.index_add(0, token, out)
        y = y + self.shared(x)
        share = counts.float() / counts.sum()
        return y, (share * share).sum() * (E if self.fault != "auxiliary" else 1)


class Net(nn.Module):
    def __init__(self, fault: str) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(D) for _ in range(2))
        self.moe, self.head = nn.ModuleList(Layer(fault if i == 1 else "") for i in range(2)), nn.Linear(D, 4)

    def forward(self, x):
        total = 0.0
        for norm, layer in zip(self.norms, self.moe):
            y, loss = layer(norm(x))
            x, total = x + y, total + loss
        return self.head(x).pow(2).mean() + 0.01 * total


def _register(fault: str, first: str | None, site: str, phase: str = "forward", dtype=torch.float32) -> None:
    def build(faulty: bool) -> Pair:
        torch.manual_seed(70)
        return Net(fault if faulty else "").to(dtype), (
            torch.randn(40, D).to(dtype).requires_grad_(phase != "forward"),
        )

    build.__name__ = f"{fault.replace(':', '_')}_{str(dtype)[6:]}"
    case(first, "MoE reports", site=site, phase=phase)(build)


for _fault in ("no_softmax", "no_bias", "bottom", "not_renormalised", "histogram"):
    _register(f"router:{_fault}", "moe.1.router", "module")
for _fault in ("capacity", "unweighted", "overwrites", "auxiliary"):
    _register(f"layer:{_fault}", "moe.1", "inline")
for _fault in ("no_bias", "not_renormalised"):
    _register(f"router:{_fault}", "moe.1.router", "module", dtype=torch.bfloat16)
_register("layer:capacity", "moe.1", "inline", dtype=torch.bfloat16)
for _dtype in (torch.float32, torch.bfloat16):
    _register("layer:order", None, "", "backward", dtype=_dtype)
