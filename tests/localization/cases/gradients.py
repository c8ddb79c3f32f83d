"""Faults that only the backward pass shows, and harmless differences of gradients."""

from __future__ import annotations

import torch
from localization_cases import Pair, case
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint


class Function(torch.autograd.Function):
    """y = silu(x) with a gradient that ``fault`` makes wrong."""

    @staticmethod
    def forward(ctx, x, fault):
        ctx.save_for_backward(x)
        ctx.fault = fault
        return functional.silu(x)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        s = torch.sigmoid(x)
        d = s * (1 + x * (1 - s))
        if ctx.fault == "no_second_term":
            d = s
        if ctx.fault == "scaled":
            d = d * 1.001
        if ctx.fault == "zero":
            d = torch.zeros_like(d)
        if ctx.fault == "one_row":
            d = d.clone()
            d[0] = d[0] * 1.5
        if ctx.fault == "half":
            d = d.bfloat16().float()
        return g * d, None


class Act(nn.Module):
    def __init__(self, fault: str) -> None:
        super().__init__()
        self.fault = fault

    def forward(self, x):
        return Function.apply(x, self.fault)


class Layer(nn.Module):
    def __init__(self, d: int, fault: str) -> None:
        super().__init__()
        part, _, what = fault.partition(":")
        self.norm, self.up, self.act, self.down = nn.LayerNorm(d), nn.Linear(d, 2 * d), Act(what), nn.Linear(2 * d, d)
        self.fault = what if part == "layer" else ""
        if part == "layer":
            self.act.fault = ""

    def forward(self, x):
        y = self.down(self.act(self.up(self.norm(x))))
        if self.fault == "detached":
            y = y.detach()
        if self.fault == "residual_detached":
            x = x.detach()
        if self.fault == "reversed":
            y = Reverse.apply(y)
        return x + y


class Reverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, g):
        return -g


class Net(nn.Module):
    """``mode``: recompute each layer."""

    def __init__(self, fault: str, mode: str = "") -> None:
        super().__init__()
        self.emb = nn.Embedding(20, 16)
        self.layers = nn.ModuleList(Layer(16, fault if i == 2 else "act:") for i in range(4))
        self.head, self.mode = nn.Linear(16, 20), mode

    def forward(self, ids, target):
        x = self.emb(ids)
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=self.mode == "reentrant") if self.mode else layer(x)
        return functional.cross_entropy(self.head(x).flatten(0, 1), target.flatten())


def _make(fault: str, mode: str = "", dtype=torch.float32) -> Pair:
    torch.manual_seed(110)
    model = Net(fault, mode).to(dtype)
    return model, (torch.randint(0, 20, (4, 6)), torch.randint(0, 20, (4, 6)))


def _register(fault: str, first: str, site: str, mode: str = "", dtype=torch.float32) -> None:
    def build(faulty: bool) -> Pair:
        return _make(fault if faulty else "act:", mode if faulty else "", dtype)

    build.__name__ = f"{fault.replace(':', '_')}{'_' + mode if mode else ''}_{str(dtype)[6:]}"
    case(first, "backward-only reports", site=site, phase="backward")(build)


for _fault in ("no_second_term", "scaled", "zero", "one_row", "half"):
    _register(f"act:{_fault}", "layers.2.act", "module")
_register("act:no_second_term", "layers.2.act", "module", dtype=torch.bfloat16)
_register("act:one_row", "layers.2.act", "module", mode="plain")
_register("act:one_row", "layers.2.act", "module", mode="reentrant")
for _fault in ("detached", "residual_detached", "reversed"):
    _register(f"layer:{_fault}", "layers.2", "inline")


class Embed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, weight, ids, fault):
        ctx.save_for_backward(ids)
        ctx.shape, ctx.fault = weight.shape, fault
        return weight[ids]

    @staticmethod
    def backward(ctx, g):
        (ids,) = ctx.saved_tensors
        grad = torch.zeros(ctx.shape)
        if ctx.fault == "last_wins":
            grad[ids.flatten()] = g.flatten(0, 1)
        elif ctx.fault == "low":
            grad = grad.bfloat16().index_add(0, ids.flatten(), g.flatten(0, 1).bfloat16()).float()
        else:
            grad.index_add_(0, ids.flatten(), g.flatten(0, 1))
        if ctx.fault == "rare":
            grad[ids.min(), :3] *= 1.5
        return grad, None, None


class EmbedModule(nn.Module):
    def __init__(self, fault: str) -> None:
        super().__init__()
        self.weight, self.fault = nn.Parameter(torch.randn(20, 16)), fault

    def forward(self, ids):
        return Embed.apply(self.weight, ids, self.fault)


def _register_embed(fault: str) -> None:
    def build(faulty: bool) -> Pair:
        torch.manual_seed(111)
        model = nn.Sequential(EmbedModule(fault if faulty else ""), nn.LayerNorm(16), nn.Linear(16, 3))
        return model, (torch.randint(0, 20, (8, 10)),)

    build.__name__ = f"embedding_{fault}"
    case("0", "OpGuard 1, 16: embedding backward", site="module", phase="backward")(build)


for _fault in ("last_wins", "low", "rare"):
    _register_embed(_fault)


class LinearFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w, b, fault):
        ctx.save_for_backward(x, w)
        ctx.fault = fault
        return functional.linear(x, w, b)

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        dx, dw, db = g @ w, g.flatten(0, -2).t() @ x.flatten(0, -2), g.flatten(0, -2).sum(0)
        if ctx.fault == "weight_tail":
            dw = g.flatten(0, -2)[:-1].t() @ x.flatten(0, -2)[:-1]
        if ctx.fault == "bias_mean":
            db = db / g.shape[0]
        if ctx.fault == "input_tail":
            dx = g[..., :-1] @ w[:-1]
        if ctx.fault == "weight_doubled":
            dw = 2 * dw
        return dx, dw, db, None


class MyLinear(nn.Linear):
    fault = ""

    def forward(self, x):
        return LinearFunction.apply(x, self.weight, self.bias, self.fault)


def _register_linear(fault: str) -> None:
    def build(faulty: bool) -> Pair:
        torch.manual_seed(112)
        model = nn.Sequential(nn.Linear(8, 16), MyLinear(16, 16), nn.GELU(), nn.Linear(16, 2))
        model[1].fault = fault if faulty else ""
        return model, (torch.randn(12, 8),)

    build.__name__ = f"linear_{fault}"
    case("1", "weight gradient reports", site="module", phase="backward")(build)


for _fault in ("weight_tail", "bias_mean", "input_tail", "weight_doubled"):
    _register_linear(_fault)


class Tied(nn.Module):
    """The head's use of the shared weight does not count."""

    def __init__(self, fault: bool) -> None:
        super().__init__()
        self.emb, self.fc, self.fault = nn.Embedding(20, 8), nn.Linear(8, 8), fault

    def forward(self, ids):
        weight = self.emb.weight.detach() if self.fault else self.emb.weight
        return functional.linear(self.fc(self.emb(ids)), weight)


@case("", "DeepSpeed#966: a tied weight's second use lost", site="inline", phase="backward")
def tied_weight_counted_once(faulty: bool) -> Pair:
    torch.manual_seed(113)
    return Tied(faulty), (torch.randint(0, 20, (3, 5)),)
