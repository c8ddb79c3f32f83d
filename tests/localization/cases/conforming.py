"""Whole models and steps that differ in form only: recompute, optimizer kernels, layouts, ties, partial sums."""

from __future__ import annotations

import torch
from localization_cases import Pair, case
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint


class Residual(nn.Module):
    def __init__(self, d: int) -> None:
        super().__init__()
        self.norm, self.up, self.drop, self.down = (
            nn.LayerNorm(d),
            nn.Linear(d, 2 * d),
            nn.Dropout(0.0),
            nn.Linear(2 * d, d),
        )

    def forward(self, x):
        return x + self.down(self.drop(functional.gelu(self.up(self.norm(x)))))


class Deep(nn.Module):
    """``mode``: None, "reentrant" or "plain" recomputation; ``pieces``: whole segments of two blocks."""

    def __init__(self, mode: str | None, segments: bool = False) -> None:
        super().__init__()
        self.blocks, self.mode, self.segments = nn.ModuleList(Residual(16) for _ in range(4)), mode, segments

    def forward(self, x):
        if self.segments and self.mode:
            for pair in (self.blocks[:2], self.blocks[2:]):
                x = checkpoint(lambda y, pair=pair: pair[1](pair[0](y)), x, use_reentrant=self.mode == "reentrant")
            return x.pow(2).mean()
        for block in self.blocks:
            x = block(x) if self.mode is None else checkpoint(block, x, use_reentrant=self.mode == "reentrant")
        return x.pow(2).mean()


def _register_recompute(mode: str, segments: bool, phase: str) -> None:
    def build(faulty: bool) -> Pair:
        torch.manual_seed(12)
        model = Deep(mode if faulty else None, segments)
        model.opt = torch.optim.AdamW(model.parameters(), lr=1e-2)
        return model, (torch.randn(4, 16).requires_grad_(),)

    build.__name__ = f"recompute_{mode}_{'segments' if segments else 'blocks'}_{phase}"
    case(None, "recompute on one side", phase=phase)(build)


for _mode in ("reentrant", "plain"):
    for _segments in (False, True):
        for _phase in ("backward", "step"):
            _register_recompute(_mode, _segments, _phase)


def _register_optimizer(name: str, make) -> None:
    def build(faulty: bool) -> Pair:
        torch.manual_seed(13)
        model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 4))
        model.opt = make(model, faulty)
        return model, (torch.randn(8, 16),)

    build.__name__ = f"optimizer_{name}"
    case(None, "same update, another kernel", phase="step")(build)


_register_optimizer("adamw_foreach", lambda m, other: torch.optim.AdamW(m.parameters(), lr=1e-2, foreach=other))
_register_optimizer("adamw_fused", lambda m, other: torch.optim.AdamW(m.parameters(), lr=1e-2, fused=other))
_register_optimizer(
    "sgd_foreach",
    lambda m, other: torch.optim.SGD(m.parameters(), lr=1e-2, momentum=0.9, weight_decay=0.1, foreach=other),
)
_register_optimizer(
    "groups_in_another_order",
    lambda m, other: torch.optim.Adam(list(m.parameters())[:: -1 if other else 1], lr=1e-2),
)


@case(None, "batch norm folded into scale and shift")
def batch_norm_in_eval(faulty: bool) -> Pair:
    """Folded statistics: y = x * scale + shift instead of normalising."""
    torch.manual_seed(14)

    class Folded(nn.BatchNorm1d):
        def forward(self, x):
            scale = self.weight * torch.rsqrt(self.running_var + self.eps)
            return x * scale + (self.bias - self.running_mean * scale)

    model = nn.Sequential(nn.Linear(16, 32), (Folded if faulty else nn.BatchNorm1d)(32), nn.ReLU()).eval()
    model[1].running_mean.normal_()
    model[1].running_var.uniform_(0.5, 2)
    return model, (torch.randn(20, 16),)


class Router(nn.Module):
    def __init__(self, d: int, e: int, other: bool) -> None:
        super().__init__()
        self.w, self.other = nn.Parameter(torch.randn(d, e) * 0.05), other

    def forward(self, x):
        logits = sum(a @ b for a, b in zip(x.chunk(8, -1), self.w.chunk(8, 0))) if self.other else x @ self.w
        values, index = logits.softmax(-1).topk(2, -1)
        return values, index


class MoE(nn.Module):
    """Twin experts: two columns of the router are equal, so that the choice between them is a tie."""

    def __init__(self, other: bool) -> None:
        super().__init__()
        self.norm, self.router = nn.LayerNorm(64), Router(64, 8, other)
        with torch.no_grad():
            self.router.w[:, 4:] = self.router.w[:, :4] * (1 + 1e-7 * torch.randn(64, 4))
        self.experts, self.other = nn.ModuleList(nn.Linear(64, 64) for _ in range(8)), other

    def forward(self, x):
        x = self.norm(x)
        weight, index = self.router(x)
        y = torch.zeros_like(x)
        for n in range(8):
            token, slot = (index == n).nonzero(as_tuple=True)
            y = y.index_add(0, token, self.experts[n](x[token]) * weight[token, slot, None])
        return y


@case(None, "near-ties of a router")
def router_near_ties(faulty: bool) -> Pair:
    torch.manual_seed(15)
    return MoE(faulty), (torch.randn(60, 64),)


class Argmax(nn.Module):
    def __init__(self, other: bool) -> None:
        super().__init__()
        self.head, self.other, self.emb = nn.Linear(64, 32), other, nn.Embedding(32, 16)
        with torch.no_grad():
            self.head.weight[16:] = self.head.weight[:16]
            self.head.bias.zero_()

    def forward(self, x):
        logits = self.head(x)
        token = logits.flip(-1).argmax(-1).sub(31).neg() if self.other else logits.argmax(-1)
        return self.emb(token)


@case(None, "equal logits: the last or the first maximum")
def argmax_of_exact_ties(faulty: bool) -> Pair:
    torch.manual_seed(16)
    return Argmax(faulty), (torch.randn(40, 64),)


class Sorter(nn.Module):
    def __init__(self, other: bool) -> None:
        super().__init__()
        self.other = other

    def forward(self, x, value):
        order = x.sort(descending=False, stable=True)[1]
        if self.other:
            order = x.flip(0).sort(stable=True)[1].sub(len(x) - 1).neg()
        return value[order].cumsum(0), order


@case(None, "sort of equal keys: no order is the right one")
def sort_of_equal_keys(faulty: bool) -> Pair:
    torch.manual_seed(17)
    return Wrapper(Sorter(faulty)), (torch.randint(0, 20, (60,)).float(),)


class Wrapper(nn.Module):
    """Sorts the depths, then sums values of tied keys: the sums differ, what they mean does not."""

    def __init__(self, sorter: nn.Module) -> None:
        super().__init__()
        self.sorter = sorter

    def forward(self, x):
        _, order = self.sorter(x, torch.ones(len(x)))
        return x[order]


@case(None, "channels_last on one side", phase="backward")
def memory_format(faulty: bool) -> Pair:
    torch.manual_seed(18)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3), nn.AdaptiveAvgPool2d(1))
    x = torch.randn(2, 3, 9, 9)
    if faulty:
        model, x = model.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)
    return model, (x,)


@case(None, "subnormals flushed to zero")
def flush_to_zero(faulty: bool) -> Pair:
    torch.manual_seed(19)

    class Small(nn.Module):
        def forward(self, x):
            y = x * 1e-7
            if faulty:
                y = torch.where(y.abs() < torch.finfo(y.dtype).tiny, torch.zeros_like(y), y)
            return y

    return nn.Sequential(nn.Identity(), Small()), (torch.randn(16, 64).half(),)


@case(None, "bf16 sum over eight ranks, rounded after each")
def partial_sums_of_ranks(faulty: bool) -> Pair:
    torch.manual_seed(20)

    class Reduce(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.randn(512, 64).bfloat16())

        def forward(self, x):
            if not faulty:
                return x @ self.w
            parts = [a @ b for a, b in zip(x.chunk(8, -1), self.w.chunk(8, 0))]
            return sum(part.float() for part in parts).bfloat16()

    return nn.Sequential(nn.Identity(), Reduce()), (torch.randn(64, 512).bfloat16(),)
