"""Quantised layers: int8 and int4, scales, zero points, rounding, accumulation, saturation."""

from __future__ import annotations

import torch
from localization_cases import Pair, case
from torch import nn


def _round_half_up(x):
    return torch.floor(x + 0.5)


class Quantise(nn.Module):
    """Per-row dynamic quantisation to int8."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        self.fault = fault

    def forward(self, x):
        top = 128.0 if self.fault == "range" else 127.0
        dim = None if self.fault == "per_tensor" else -1
        scale = (x.abs().amax(dim, keepdim=True) if dim else x.abs().amax().expand(len(x), 1)) / top
        if self.fault == "scale_bf16":
            scale = scale.bfloat16().float()
        q = x / scale
        q = {"truncates": torch.trunc, "half_up": _round_half_up}.get(self.fault, torch.round)(q)
        q = q.clamp(-100 if self.fault == "saturates" else -127, 100 if self.fault == "saturates" else 127)
        if self.fault == "wraps":
            q = (x / scale * 1.05).round().to(torch.int32).to(torch.int8).float()
        return q.to(torch.int8), scale


class Matmul(nn.Module):
    def __init__(self, fault: str) -> None:
        super().__init__()
        self.fault = fault
        self.register_buffer("weight", torch.randint(-127, 128, (24, 64), dtype=torch.int8))
        self.register_buffer("scale", torch.rand(24) * 0.01)
        self.register_buffer("zero", torch.randint(-3, 4, (24,)).float())

    def forward(self, q, scale):
        total = q.int() @ self.weight.int().t()
        if self.fault == "int16":
            total = total.to(torch.int16).int()
        if self.fault == "tail":
            total = q[:, :60].int() @ self.weight[:, :60].int().t()
        zero = 0.0 if self.fault == "no_zero" else self.zero
        total = total.float() - zero * q.float().sum(-1, keepdim=True)
        if self.fault == "axis":
            return total * scale * self.scale.mean()
        return total * scale * self.scale


class Quantised(nn.Module):
    def __init__(self, fault: str = "") -> None:
        super().__init__()
        part, _, what = fault.partition(":")
        self.fc, self.quantise = nn.Linear(16, 64), Quantise(what if part == "quantise" else "")
        self.matmul, self.out = Matmul(what if part == "matmul" else ""), nn.Linear(24, 4)

    def forward(self, x):
        return self.out(torch.relu(self.matmul(*self.quantise(self.fc(x)))))


def _register(fault: str, first: str) -> None:
    def build(faulty: bool) -> Pair:
        torch.manual_seed(100)
        return Quantised(fault if faulty else ""), (torch.randn(20, 16),)

    build.__name__ = fault.replace(":", "_")
    case(first, "quantisation reports", site="module")(build)


for _fault in ("range", "per_tensor", "truncates", "saturates", "wraps", "scale_bf16"):
    _register(f"quantise:{_fault}", "quantise")
for _fault in ("int16", "tail", "no_zero", "axis"):
    _register(f"matmul:{_fault}", "matmul")


class FakeQuant(nn.Module):
    """Quantise and dequantise in one module. ``way``: by division, by reciprocal, in another precision."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way = way
        self.register_buffer("scale", torch.tensor(0.037))

    def forward(self, x):
        if self.way == "reciprocal":
            q = torch.round(x.float() * (1.0 / self.scale.float()))
        elif self.way == "half_up":
            q = _round_half_up(x.float() / self.scale)
        elif self.way == "seven_bits":
            q = torch.round(x.float() / self.scale).clamp(-64, 63)
        else:
            q = torch.round(x.float() / self.scale)
        if self.way == "zero_point":
            q = q + 1
        return (q.clamp(-128, 127) * self.scale).to(x.dtype)


class FakeQuantNet(nn.Module):
    def __init__(self, way: str) -> None:
        super().__init__()
        self.fc, self.fake, self.out = nn.Linear(64, 64), FakeQuant(way), nn.Linear(64, 4)

    def forward(self, x):
        return self.out(self.fake(self.fc(x)))


def _register_fake(way: str, first: str | None, dtype: torch.dtype) -> None:
    def build(faulty: bool) -> Pair:
        torch.manual_seed(101)
        return FakeQuantNet(way if faulty else "").to(dtype), (torch.randn(300, 64).to(dtype) * 2,)

    build.__name__ = f"fake_{way}_{str(dtype)[6:]}"
    case(first, "fake quantisation", site="module")(build)


for _dtype in (torch.float32, torch.bfloat16):
    _register_fake("reciprocal", None, _dtype)
    _register_fake("zero_point", "fake", _dtype)
    _register_fake("seven_bits", "fake", _dtype)


class Int4(nn.Module):
    """Two weights a byte. ``fault``: nibble order, sign, group of scales."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        self.fault = fault
        self.register_buffer("packed", torch.randint(0, 256, (16, 16), dtype=torch.uint8))
        self.register_buffer("scale", torch.rand(16, 4) * 0.1)

    def forward(self, x):
        low, high = self.packed & 15, self.packed >> 4
        if self.fault == "nibbles":
            low, high = high, low
        w = torch.stack((low, high), -1).flatten(-2).to(x.dtype)
        w = w - (7 if self.fault == "offset" else 8)
        scale = self.scale.roll(1, 1) if self.fault == "groups" else self.scale
        if self.fault == "scale_fp8":
            scale = scale.to(torch.float8_e4m3fn).float()
        w = w * scale.repeat_interleave(8, 1).to(x.dtype)
        return x @ w.t()


def _register_int4(fault: str) -> None:
    def build(faulty: bool) -> Pair:
        torch.manual_seed(102)
        model = nn.Sequential(nn.Linear(16, 32), Int4(fault if faulty else ""), nn.Linear(16, 2))
        return model, (torch.randn(10, 16),)

    build.__name__ = f"int4_{fault}"
    case("1", "vLLM#16801, llm-awq#321", site="module")(build)


for _fault in ("nibbles", "offset", "groups", "scale_fp8"):
    _register_int4(_fault)


class RealQuantised(nn.Module):
    """torch's own quantised tensors pass between modules."""

    def __init__(self, fault: bool) -> None:
        super().__init__()
        self.fault = fault

    def forward(self, x):
        return torch.quantize_per_tensor(x, 0.05 if not self.fault else 0.051, 3, torch.quint8)


class Dequantise(nn.Module):
    def forward(self, q):
        return q.dequantize()


@case("0", "a quantised tensor as output", site="module")
def quantised_tensor_scale(faulty: bool) -> Pair:
    torch.manual_seed(103)
    return nn.Sequential(RealQuantised(faulty), Dequantise(), nn.Linear(8, 2)), (torch.randn(6, 8),)


@case(None, "a quantised tensor as output")
def quantised_tensor(faulty: bool) -> Pair:
    torch.manual_seed(103)
    return nn.Sequential(RealQuantised(False), Dequantise(), nn.Linear(8, 2)), (torch.randn(6, 8),)
