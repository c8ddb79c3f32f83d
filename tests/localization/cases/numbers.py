"""NaN, Inf, saturation, arithmetic modes, tails and bands, precision of casts and accumulators."""

from __future__ import annotations

import math

import torch
from localization_cases import Pair, case
from torch import nn
from torch.nn import functional


class Op(nn.Module):
    """Applies one of two functions."""

    def __init__(self, function) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args):
        return self.function(*args)


def _net(function, width: int, dtype: torch.dtype) -> nn.Module:
    model = nn.Sequential()
    model.add_module("fc", nn.Linear(width, width))
    model.add_module("op", Op(function))
    model.add_module("norm", nn.LayerNorm(width))
    model.add_module("out", nn.Linear(width, 3))
    return model.to(dtype)


def _register(name, right, wrong, *, first="op", width=64, rows=24, dtype=torch.float32, scale=1.0, **expect) -> None:
    def build(faulty: bool) -> Pair:
        torch.manual_seed(sum(map(ord, name)))
        return _net(wrong if faulty else right, width, dtype), (torch.randn(rows, width).to(dtype) * scale,)

    build.__name__ = name
    case(first, "numbers", **({"site": "module"} if first else {}), **expect)(build)


def _truncate(x):
    """float32 -> bfloat16 by cutting off: a bias of half a unit everywhere."""
    return (x.float().contiguous().view(torch.int32) & -65536).view(torch.float32).bfloat16()


def _spoil(x, at, value):
    y = x.clone()
    y.flatten()[at] = value
    return y


_register("nan_at_one_element", torch.sin, lambda x: _spoil(x.sin(), 100, math.nan))
_register("inf_at_one_element", torch.sin, lambda x: _spoil(x.sin(), 100, math.inf))
_register("nan_only_in_the_reference", lambda x: (x - 1).log(), lambda x: (x - 1).log().nan_to_num(0.0))
_register("log_of_negative_clamped", lambda x: x.log(), lambda x: x.clamp_min(1e-6).log())
_register("zero_times_inf", lambda x: x / x.round(), lambda x: x / (x.round() + 1e-8))
_register(
    "saturates_fp16",
    lambda x: x * 60000,
    lambda x: (x.float() * 60000).clamp(-65504, 65504).half(),
    dtype=torch.float16,
)
_register(
    "inf_instead_of_large_fp16",
    lambda x: (x.float() * 30000).tanh().half(),
    lambda x: ((x * 30000) * 4).tanh() * 0 + (x * 60000) / (x * 60000),
    dtype=torch.float16,
)
_register(
    "both_overflow",
    lambda x: x * 1e6,
    lambda x: (x.float() * 1e6).half(),
    first=None,
    dtype=torch.float16,
    verdict="not comparable",
)
_register(
    "nan_in_both",
    lambda x: (x - 0.5).sqrt(),
    lambda x: torch.exp(0.5 * (x - 0.5).log()),
    first=None,
    verdict="not comparable",
)
_register(
    "truncating_store",
    lambda x: (x.float() * 1.7).bfloat16(),
    lambda x: _truncate(x.float() * 1.7),
    dtype=torch.bfloat16,
    rows=128,
)
_register(
    "gain_of_a_thousandth_bf16",
    lambda x: (x.float() * 1.7).bfloat16(),
    lambda x: (x.float() * 1.7017).bfloat16(),
    dtype=torch.bfloat16,
    rows=512,
)
_register("one_element_wrong", lambda x: x * 2, lambda x: _spoil(x * 2, 777, 0.123))
_register("zeros_at_intervals", lambda x: x * 2, lambda x: _spoil(x * 2, slice(7, None, 131), 0.0))
_register("last_column_lost", lambda x: x * 2, lambda x: torch.cat((x[:, :-1] * 2, x[:, -1:]), 1))
_register("rows_permuted", lambda x: x.tanh(), lambda x: x.tanh().roll(1, 0))
_register(
    "softmax_without_upcast",
    lambda x: (x.float() * 4).softmax(-1).bfloat16(),
    lambda x: _softmax_low(x * 4),
    dtype=torch.bfloat16,
    width=256,
    rows=64,
)
_register("softmax_over_wrong_axis", lambda x: x.softmax(-1), lambda x: x.softmax(0))
_register("softmax_band", lambda x: x.softmax(-1), lambda x: torch.full_like(x, 1 / x.shape[-1]))
_register(
    "no_maximum_subtracted",
    lambda x: (x * 60).softmax(-1),
    lambda x: (x * 60).exp() / (x * 60).exp().sum(-1, keepdim=True),
    scale=3.0,
)
_register(
    "variance_cancels",
    lambda x: (x + 1000).var(-1, keepdim=True) + x,
    lambda x: (x + 1000).square().mean(-1, keepdim=True) - (x + 1000).mean(-1, keepdim=True).square() + x,
)
_register(
    "running_sum_in_bf16",
    lambda x: x.float().abs().cumsum(-1).bfloat16(),
    lambda x: _running(x.abs()),
    dtype=torch.bfloat16,
    width=256,
)
_register("intermediate_in_half", lambda x: x.exp().log1p(), lambda x: x.exp().half().float().log1p())
_register("exp_less_exact", lambda x: x.exp(), lambda x: x.exp() * (1 + 1e-4 * x.sin()))
_register("output_in_another_dtype", lambda x: x * 2, lambda x: (x * 2).bfloat16().float())
_register(
    "activation_exact_on_one_side",
    functional.gelu,
    lambda x: functional.gelu(x, approximate="tanh"),
    dtype=torch.bfloat16,
    rows=128,
)
_register(
    "relu_for_gelu_at_large_values",
    functional.gelu,
    lambda x: torch.where(x.abs() > 2.5, functional.relu(x), functional.gelu(x)),
    rows=200,
    scale=3.0,
)
_register("argmax_wrong", lambda x: x + x.argmax(-1, keepdim=True), lambda x: x + x.argmin(-1, keepdim=True))
_register(
    "integer_division",
    lambda x: x + ((x * 50).long() // 8),
    lambda x: x + torch.div((x * 50).long(), 8, rounding_mode="trunc"),
)
_register(
    "index_wraps_at_256",
    lambda x: x + torch.arange(x.numel()).view_as(x) % 1000,
    lambda x: x + torch.arange(x.numel()).view_as(x) % 256 % 1000,
)
_register(
    "strided_input_read_as_contiguous",
    lambda x: x.t().contiguous().t() * 2,
    lambda x: x.t().contiguous().view(x.shape) * 2,
)


def _softmax_low(x):
    p = (x - x.amax(-1, keepdim=True)).exp()
    total = torch.zeros_like(p[:, :1])
    for n in range(p.shape[1]):
        total = total + p[:, n : n + 1]
    return p / total


def _running(x):
    total, outputs = torch.zeros_like(x[:, 0]), []
    for n in range(x.shape[1]):
        total = total + x[:, n]
        outputs.append(total)
    return torch.stack(outputs, 1)


class Leaf(nn.Linear):
    """A linear layer in another arithmetic mode. ``bits`` of mantissa kept of both factors."""

    bits = 0

    def forward(self, x):
        if not self.bits:
            return super().forward(x)
        return functional.linear(self._cut(x), self._cut(self.weight), self.bias)

    def _cut(self, x):
        shift = 23 - self.bits
        i = x.contiguous().view(torch.int32)
        return ((i + (1 << (shift - 1)) - 1 + ((i >> shift) & 1)) >> shift << shift).view(torch.float32)


def _register_mode(name: str, bits: int) -> None:
    def build(faulty: bool) -> Pair:
        torch.manual_seed(130)
        model = nn.Sequential(nn.LayerNorm(128), Leaf(128, 128), nn.GELU(), Leaf(128, 8))
        for layer in (model[1], model[3]):
            layer.bits = bits if faulty else 0
        return model, (torch.randn(32, 128),)

    build.__name__ = name
    case("1", "arithmetic modes", site="module")(build)


_register_mode("hf32", 11)
_register_mode("tf32", 10)
_register_mode("bf16_products", 7)


def _register_autocast(name: str, first: str | None, dtype: torch.dtype, wrong: bool) -> None:
    class Cast(nn.Module):
        def __init__(self, on: bool) -> None:
            super().__init__()
            self.up, self.norm, self.down, self.on = nn.Linear(32, 64), nn.LayerNorm(64), nn.Linear(64, 4), on

        def forward(self, x):
            with torch.autocast("cpu", dtype=dtype, enabled=self.on):
                return self.down(self.norm(functional.gelu(self.up(x)))).float().square().mean()

    def build(faulty: bool) -> Pair:
        torch.manual_seed(131)
        return Cast(not (faulty and wrong)), (torch.randn(20, 32),)

    build.__name__ = name
    case(first, "autocast", phase="backward" if first is None else "forward")(build)


_register_autocast("autocast_bf16", None, torch.bfloat16, False)
_register_autocast("autocast_fp16", None, torch.float16, False)


class Upcasts(nn.Module):
    """The candidate keeps float32 where the reference stores bfloat16: better, not worse."""

    def __init__(self, keeps: bool) -> None:
        super().__init__()
        self.up, self.down, self.keeps = nn.Linear(32, 64), nn.Linear(64, 4), keeps

    def forward(self, x):
        y = functional.gelu(self.up(x).float())
        if not self.keeps:
            y = y.bfloat16().float()
        return self.down(y.bfloat16())


@case(None, "one rounding fewer than the reference makes")
def one_rounding_fewer(faulty: bool) -> Pair:
    torch.manual_seed(132)
    return Upcasts(faulty).bfloat16(), (torch.randn(20, 32).bfloat16(),)


class Deep(nn.Module):
    """A chaotic chain: rounding differences grow to order one. Nothing is wrong."""

    def __init__(self, other: bool) -> None:
        super().__init__()
        self.fc, self.other = nn.ModuleList(nn.Linear(32, 32) for _ in range(30)), other
        for layer in self.fc:
            nn.init.normal_(layer.weight, std=0.6)

    def forward(self, x):
        for layer in self.fc:
            x = torch.sin(3 * layer(x * (1 + 1e-7) if self.other and layer is self.fc[0] else x))
        return x


@case(None, "amplified rounding", phase="backward")
def chaotic_chain(faulty: bool) -> Pair:
    torch.manual_seed(133)
    return Deep(faulty), (torch.randn(8, 32),)


class Amplified(nn.Module):
    """Batch norm over nearly constant channels."""

    def __init__(self, other: bool) -> None:
        super().__init__()
        self.fc, self.norm, self.other = nn.Linear(64, 16), nn.BatchNorm1d(16, eps=1e-12), other
        with torch.no_grad():
            self.fc.weight.mul_(1e-5)

    def forward(self, x):
        x = 1 + 1e-3 * x
        y = functional.linear(x.flip(-1), self.fc.weight.flip(-1), self.fc.bias) if self.other else self.fc(x)
        return self.norm(y)


@case(None, "PaddleCustomDevice#555: an amplifier is innocent", kind="benign")
def amplifier(faulty: bool) -> Pair:
    torch.manual_seed(134)
    model = nn.Sequential(Reordered(64, 16), nn.BatchNorm1d(16, eps=1e-12), nn.Linear(16, 2))
    with torch.no_grad():
        model[0].weight.mul_(1e-5)
    model[0].other = faulty
    return model, (1 + 1e-3 * torch.randn(40, 64),)


class Reordered(nn.Linear):
    other = False

    def forward(self, x):
        if not self.other:
            return super().forward(x)
        parts = [a @ b.t() for a, b in zip(x.flip(-1).chunk(8, -1), self.weight.flip(-1).chunk(8, -1))]
        return torch.stack(parts).sum(0) + self.bias
