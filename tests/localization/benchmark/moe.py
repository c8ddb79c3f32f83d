"""Mixture of experts: routing, dispatch, combination, auxiliary loss, counts."""

from __future__ import annotations

from typing import Any

import torch
from localization_benchmark import BOTH, FP32, Setup, add
from localization_benchmark.trainer import Gradient
from torch import nn
from torch.nn import functional

D, E, TOKENS = 32, 6, 160


class Router(nn.Module):
    def __init__(self, fault: str) -> None:
        super().__init__()
        self.weight, self.fault = nn.Parameter(torch.randn(E, D) * 0.4), fault
        self.register_buffer("bias", torch.linspace(-0.2, 0.2, E))

    def forward(self, x: torch.Tensor) -> Any:
        logits = functional.linear(x.float(), self.weight.float())
        probability = logits.sigmoid() if self.fault == "sigmoid" else logits.softmax(-1)
        if self.fault == "temperature":
            probability = (1.02 * logits).softmax(-1)
        index = (probability if self.fault == "no_bias" else probability + self.bias.float()).topk(2, -1)[1]
        if self.fault == "second":
            index = index.flip(-1)[:, :1].expand(-1, 2)
        weight = probability.gather(-1, index)
        if self.fault != "not_renormalised":
            weight = weight / weight.sum(-1, keepdim=True)
        if self.fault == "zero":
            weight = Gradient.apply(weight, "zero")
        mask = functional.one_hot(index, E).sum(1) > 0
        if self.fault == "bit":
            mask = mask.clone()
            mask[17, 2] = ~mask[17, 2]
        counts = torch.bincount(index.flatten(), minlength=E)
        if self.fault == "histogram":
            counts = torch.bincount(index.flatten() + 1, minlength=E)[:E]
        return weight.to(x.dtype), index, mask, counts, probability


class Balance(nn.Module):
    """The auxiliary loss, and a bias update by counts. ``fault``: how counts are kept or averaged."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        self.fault = fault
        self.register_buffer("seen", torch.tensor([40000, 40130, 39900, 40210, 40000, 39870]).float())

    def forward(self, counts: torch.Tensor, probability: torch.Tensor) -> torch.Tensor:
        if self.fault == "in_place":
            counts = counts.mul_(2)
        share = counts.float() / TOKENS
        loss = (share * probability.float().mean(0)).sum() * E
        seen = self.seen + counts.float()
        self.seen = (seen.bfloat16() if self.fault == "low_counts" else seen).to(self.seen.dtype)
        return loss / 2 if self.fault == "averaged" else loss


class Expert(nn.Module):
    def __init__(self, fault: str) -> None:
        super().__init__()
        self.up, self.down, self.fault = nn.Linear(D, 2 * D), nn.Linear(2 * D, D), fault

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = functional.silu(self.up(x))
        if self.fault == "relu":
            y = functional.relu(self.up(x))
        return self.down(y)


class Layer(nn.Module):
    def __init__(self, fault: str) -> None:
        super().__init__()
        part, _, what = fault.partition(":")
        self.router, self.balance = (
            kind(what if part == name else "") for kind, name in ((Router, "router"), (Balance, "balance"))
        )
        self.experts = nn.ModuleList(Expert(what if part == "expert" and n == 2 else "") for n in range(E))
        self.shared, self.fault = nn.Linear(D, D), what if part == "layer" else ""

    def forward(self, x: torch.Tensor) -> Any:
        weight, index, _mask, counts, probability = self.router(x)
        y = torch.zeros(x.shape, dtype=torch.float32)
        for n in reversed(range(E)) if self.fault == "order" else range(E):
            token, slot = (index == n).nonzero(as_tuple=True)
            if self.fault == "capacity":
                token, slot = token[:20], slot[:20]
            out = self.experts[n](x[token])
            if self.fault == "wrong_expert" and n in (3, 4):
                out = self.experts[n](x[token].flip(0))
            if self.fault != "unweighted":
                used = weight.detach() if self.fault == "combine" else weight
                out = out * used[token, 1 - slot if self.fault == "slot" else slot, None]
            out = out.float()
            y = y.index_copy(0, token, out) if self.fault == "overwrites" else y.index_add(0, token, out)
        y = y.to(x.dtype)
        y = y if self.fault == "no_shared" else y + self.shared(x)
        return y, self.balance(counts, probability)


class Net(nn.Module):
    def __init__(self, fault: str) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(D) for _ in range(2))
        self.moe, self.head = nn.ModuleList(Layer(fault if i == 1 else "") for i in range(2)), nn.Linear(D, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        total = torch.zeros(())
        for norm, layer in zip(self.norms, self.moe):
            y, loss = layer(norm(x))
            x, total = x + y, total + loss
        return self.head(x).float().pow(2).mean() + 0.01 * total


def make_moe(fault: str, seed: int, dtype: torch.dtype) -> Setup:
    torch.manual_seed(seed)
    model = Net(fault).to(dtype)
    return Setup(model, [[{"x": torch.randn(TOKENS, D).to(dtype)}]])


def _add(
    fault: str, first: str, sites: Any, row: str, words: tuple[str, ...] = (), dtypes: Any = BOTH, **more: Any
) -> None:
    def build(faulty: bool, seed: int, dtype: torch.dtype) -> Setup:
        return make_moe(fault if faulty else "", seed, dtype)

    add(fault.replace(":", "_"), "moe", build, first, sites, row=row, words=words, dtypes=dtypes, **more)


for _fault, _row, _words in (
    ("sigmoid", "pilot", ("sigmoid instead",)),
    ("temperature", "pilot", ("1.02 times",)),
    ("no_bias", "25", ("term of `add`",)),
    ("second", "pilot", ()),
    ("not_renormalised", "pilot", ("factor of `div`",)),
    ("bit", "12", ("index 17",)),
    ("histogram", "11", ()),
):
    _add(f"router:{_fault}", "moe.1.router", "module", _row, _words)
_add("balance:averaged", "moe.1.balance", "module", "50", ("1/2",))
_add("balance:in_place", "moe.1.balance", "module", "51", ("constant, 2",))
_add("balance:low_counts", "moe.1.balance", "module", "27", ("bfloat16",), dtypes=(FP32,))
_add("expert:relu", "moe.1.experts.2", "inline", "pilot", ("relu instead",))
for _fault, _row, _words in (
    ("capacity", "pilot", ()),
    ("unweighted", "pilot", ("factor of `mul`",)),
    ("overwrites", "pilot", ()),
    ("slot", "37", ()),
    ("no_shared", "pilot", ("term of `add`",)),
):
    _add(f"layer:{_fault}", "moe.1", "inline", _row, _words)
_add("layer:combine", "moe.1", "inline", "37", ("zero",), phase="backward")
_add("router:zero", "moe.1.router", "module", "39", ("zero",), phase="backward")
