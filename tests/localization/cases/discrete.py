"""Discontinuous code inside one module: rounding flips a few values, and that is no fault; more than a few is one."""

from __future__ import annotations

import torch
from localization_cases import Pair, case
from torch import nn
from torch.nn import functional


class Op(nn.Module):
    def __init__(self, function) -> None:
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


def _register(name, right, other, first, *, dtype=torch.float32, rows=400, scale=1.0, phase="forward") -> None:
    def build(faulty: bool) -> Pair:
        torch.manual_seed(140)
        model = nn.Sequential()
        model.add_module("fc", nn.Linear(64, 64))
        model.add_module("op", Op(other if faulty else right))
        model.add_module("out", nn.Linear(64, 3))
        return model.to(dtype), ((torch.randn(rows, 64) * scale).to(dtype),)

    build.__name__ = name
    case(first, "discontinuities", phase=phase, **({"site": "module"} if first else {}))(build)


def _noisy(x):
    """The same value with the last bit or two different, as another order of sums gives."""
    return x * (1 + 2.0**-23 * torch.sin(1e4 * x))


_register("round", lambda x: (x * 40).round() / 40, lambda x: (_noisy(x) * 40).round() / 40, None, rows=4000)
_register("floor", lambda x: (x * 300).floor() / 300, lambda x: (_noisy(x) * 300).floor() / 300, None, rows=4000)
_register("sign", lambda x: (x * 5000).trunc().sign(), lambda x: (_noisy(x) * 5000).trunc().sign(), None, rows=4000)
_register(
    "threshold",
    lambda x: torch.where(x > 0.25, x, x * 0),
    lambda x: torch.where(_noisy(x) > 0.25, x, x * 0),
    None,
    rows=4000,
)
_register("top_values_kept", lambda x: _keep(x, x), lambda x: _keep(x, _noisy(x)), None, rows=2000)
_register("ceil_wrong", lambda x: (x * 40).floor() / 40, lambda x: (x * 40).ceil() / 40, "op")
_register(
    "one_bucket_off", lambda x: (x * 40).round() / 40, lambda x: ((x * 40).round() + ((x * 40).round() == 3)) / 40, "op"
)
_register("threshold_wrong", lambda x: torch.where(x > 0.25, x, x * 0), lambda x: torch.where(x > 0.26, x, x * 0), "op")
_register("top_three_for_four", lambda x: _keep(x, x), lambda x: _keep(x, x, 3), "op")
_register(
    "round_bf16",
    lambda x: (x.float() * 8).round().to(x.dtype) / 8,
    lambda x: (_noisy(x.float()) * 8).round().to(x.dtype) / 8,
    None,
    dtype=torch.bfloat16,
    rows=2000,
)
_register(
    "threshold_bf16",
    lambda x: torch.where(x.float() * 3 > 1, x, x * 0),
    lambda x: torch.where(x.float() > 1 / 3, x, x * 0),
    None,
    dtype=torch.bfloat16,
    rows=2000,
)


def _keep(x, score, count=4):
    index = score.topk(count, -1)[1]
    return torch.zeros_like(x).scatter(-1, index, x.gather(-1, index))


class Sorts(nn.Module):
    """Front to back over blobs whose depths nearly tie."""

    def __init__(self, other: bool) -> None:
        super().__init__()
        self.other = other

    def forward(self, depth, alpha, color):
        order = (_noisy(depth) if self.other else depth).argsort()
        a = alpha[order]
        through = torch.cat((torch.ones(1), (1 - a).cumprod(0)[:-1]))
        return (color[order] * (a * through)[:, None]).cumsum(0)[-1], through


class SortsNet(nn.Module):
    def __init__(self, other: bool) -> None:
        super().__init__()
        self.fc, self.blend, self.out = nn.Linear(3, 5), Sorts(other), nn.Linear(3, 2)

    def forward(self, x):
        y = self.fc(x)
        depth = (y[:, 0] * 50).round() / 50 * (1 + 1e-7 * y[:, 4])
        image, _ = self.blend(depth, y[:, 1].sigmoid() * 0.3, y[:, 2:])
        return self.out(image)


@case(None, "depths that nearly tie")
def sort_inside_blending(faulty: bool) -> Pair:
    torch.manual_seed(141)
    return SortsNet(faulty), (torch.randn(60, 3),)


class Nearest(nn.Module):
    def __init__(self, other: bool) -> None:
        super().__init__()
        self.other = other
        self.register_buffer("table", torch.randn(50, 8))

    def forward(self, x):
        distance = torch.cdist(x, self.table)
        if self.other:
            distance = (
                x.square().sum(-1, keepdim=True) - 2 * x @ self.table.t() + self.table.square().sum(-1)
            ).clamp_min(0)
        return functional.embedding(distance.argmin(-1), self.table)


@case(None, "vector quantisation by another formula of the distance")
def nearest_code(faulty: bool) -> Pair:
    torch.manual_seed(142)
    return nn.Sequential(nn.Linear(8, 8), Nearest(faulty), nn.Linear(8, 2)), (torch.randn(3000, 8),)
