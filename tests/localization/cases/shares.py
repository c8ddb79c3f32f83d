"""Which part of a gradient belongs to which call: shared tensors, outputs used inside, in-place code, accumulation."""

from __future__ import annotations

import torch
from localization_cases import Pair, case
from torch import nn


class Other(nn.Linear):
    """The same product summed in another order, so that nothing after it is bit-equal."""

    other = False

    def forward(self, x):
        if not self.other:
            return super().forward(x)
        parts = [a @ b.t() for a, b in zip(x.chunk(4, -1), self.weight.chunk(4, -1))]
        return torch.stack(parts).flip(0).sum(0) + self.bias


class Both(nn.Module):
    """Returns what it also uses itself. ``way``: which of the usual forms."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.fc, self.pool, self.way = nn.Linear(16, 16), nn.Linear(16, 16), way

    def forward(self, x):
        h = torch.tanh(self.fc(x))
        if self.way == "inline":
            return h, h.square().mean(1)
        if self.way == "child":
            return h, torch.tanh(self.pool(h[:, 0]))
        if self.way == "chain":
            a = h * 2
            b = a.sin()
            return h, a, b, b * a
        return h, self.pool(h)


class UsesBoth(nn.Module):
    def __init__(self, way: str, other: bool) -> None:
        super().__init__()
        self.emb, self.enc, self.head, self.aux = nn.Linear(8, 16), Both(way), Other(16, 4), Other(16, 4)
        self.head.other = self.aux.other = other

    def forward(self, x):
        first, *others = self.enc(self.emb(x))
        return self.head(first).mean() + sum(self.aux(other).square().mean() for other in others)


def _register_both(way: str) -> None:
    def build(faulty: bool) -> Pair:
        torch.manual_seed(114)
        return UsesBoth(way, faulty), (torch.randn(5, 6, 8).requires_grad_(),)

    build.__name__ = f"output_used_inside_{way}"
    case(None, "an output from which other outputs are computed", phase="backward")(build)


for _way in ("inline", "child", "chain", "whole"):
    _register_both(_way)


class Carried(nn.Module):
    """A recurrent cell whose state is an output and an input of the next call."""

    def __init__(self, other: bool) -> None:
        super().__init__()
        self.cell, self.head = nn.LSTMCell(8, 8), Other(8, 4)
        self.head.other = other

    def forward(self, x):
        state, total = None, 0.0
        for t in range(x.shape[1]):
            state = self.cell(x[:, t], state)
            total = total + self.head(state[0]).square().mean()
        return total


@case(None, "recurrent state", phase="backward")
def carried_state(faulty: bool) -> Pair:
    torch.manual_seed(115)
    return Carried(faulty), (torch.randn(3, 5, 8).requires_grad_(),)


class Mixed(nn.Module):
    """Many small ways for a gradient to go: views, slices, in-place, lists, broadcasts, frozen parts, no_grad."""

    def __init__(self, other: bool) -> None:
        super().__init__()
        self.a, self.b, self.c, self.frozen = (Other(8, 8) for _ in range(4))
        self.frozen.requires_grad_(False)
        self.gain = nn.Parameter(torch.ones(8))
        for layer in (self.a, self.b, self.c, self.frozen):
            layer.other = other

    def forward(self, x):
        y = self.a(x)
        left, right = self.b(y).chunk(2, -1)
        z = torch.cat((right, left), -1) * self.gain
        z = z + self.c(z[:1]).expand_as(z)
        z[:, 0] += 1
        with torch.no_grad():
            scale = self.frozen(y).abs().amax()
        return {"loss": (self.frozen(z) / scale).square().mean(), "last": y, "parts": [left, right]}


@case(None, "many ways for a gradient to go", phase="backward")
def mixed_graph(faulty: bool) -> Pair:
    torch.manual_seed(116)
    return Mixed(faulty), (torch.randn(6, 8).requires_grad_(),)


class Accumulating(nn.Module):
    """Micro-batches inside; their losses are summed. ``fault``: one of them counts twice."""

    def __init__(self, fault: bool) -> None:
        super().__init__()
        self.fc, self.head, self.fault = nn.Linear(8, 8), nn.Linear(8, 2), fault

    def forward(self, x):
        losses = [self.head(torch.tanh(self.fc(part))).square().mean() for part in x.chunk(4)]
        weights = [1.0, 1.0, 2.0 if self.fault else 1.0, 1.0]
        return sum(loss * weight for loss, weight in zip(losses, weights)) / 4


@case("", "accumulation counts one micro-batch twice", site="inline")
def micro_batch_counted_twice(faulty: bool) -> Pair:
    torch.manual_seed(117)
    return Accumulating(faulty), (torch.randn(8, 8),)


class NormFunction(torch.autograd.Function):
    """Layer norm whose backward drops a term."""

    @staticmethod
    def forward(ctx, x, fault):
        m, v = x.mean(-1, keepdim=True), x.var(-1, unbiased=False, keepdim=True)
        y = (x - m) * torch.rsqrt(v + 1e-5)
        ctx.save_for_backward(y, v)
        ctx.fault = fault
        return y

    @staticmethod
    def backward(ctx, g):
        y, v = ctx.saved_tensors
        d = g - g.mean(-1, keepdim=True)
        if not ctx.fault:
            d = d - y * (g * y).mean(-1, keepdim=True)
        return d * torch.rsqrt(v + 1e-5), None


class Norm(nn.Module):
    def __init__(self, fault: bool) -> None:
        super().__init__()
        self.fault = fault

    def forward(self, x):
        return NormFunction.apply(x, self.fault)


@case("1", "layer norm backward without its last term", site="module", phase="backward")
def norm_backward_drops_a_term(faulty: bool) -> Pair:
    torch.manual_seed(118)
    return nn.Sequential(nn.Linear(8, 16), Norm(faulty), nn.Tanh(), nn.Linear(16, 2)), (torch.randn(12, 8),)


class SelfAttention(nn.Module):
    """One tensor as three arguments, one output under two names."""

    def __init__(self, other: bool) -> None:
        super().__init__()
        self.norm, self.attn = nn.LayerNorm(16), nn.MultiheadAttention(16, 4, batch_first=True)
        self.twice, self.head = Twice(), Other(16, 4)
        self.head.other = other

    def forward(self, x):
        y = self.norm(x)
        z, _ = self.attn(y, y, y, need_weights=False)
        both = self.twice(z)
        return (self.head(both["a"]) * both["b"].mean() + both["list"][0].square().mean()).square().mean()


class Twice(nn.Module):
    def forward(self, x):
        y = x.sin()
        return {"a": y, "b": y, "list": [y, x]}


@case(None, "one tensor several times in arguments and outputs", phase="backward")
def same_tensor_several_times(faulty: bool) -> Pair:
    torch.manual_seed(119)
    return SelfAttention(faulty), (torch.randn(2, 5, 16).requires_grad_(),)


class Writes(nn.Module):
    """In-place code after its tensors were handed to children, and everything downstream not bit-equal."""

    def __init__(self, other: bool) -> None:
        super().__init__()
        self.a, self.b, self.head, self.act = nn.Linear(8, 8), nn.Linear(8, 8), Other(8, 4), nn.ReLU(inplace=True)
        self.head.other = other

    def forward(self, x):
        y = self.a(x)
        z = self.act(y)
        z = self.b(z * 1.5)
        z += y
        w = z.clone()
        out = self.head(w).square().mean()
        z[:, 0] = 0
        return out + self.head(z).mean()


@case(None, "in-place code and a later difference", phase="backward")
def in_place_and_not_bit_equal(faulty: bool) -> Pair:
    torch.manual_seed(119)
    return nn.Sequential(nn.Linear(8, 8), Writes(faulty)), (torch.randn(6, 8),)
