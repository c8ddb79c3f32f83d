"""Differences that conforming builds make: none may be blamed."""

from __future__ import annotations

import math

import torch
from localization_cases import Pair, case
from torch import nn
from torch.nn import functional

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class Code(nn.Module):
    """One of two ways to compute the same; ``other`` selects the second."""

    def __init__(self, ways, other: bool, **parameters: torch.Tensor) -> None:
        super().__init__()
        self.way = ways[other]
        for name, value in parameters.items():
            setattr(self, name, nn.Parameter(value))

    def forward(self, *args):
        return self.way(self, *args)


def split_matmul(self, x):
    """Split-K with partial sums in float32, one rounding at the end."""
    parts = [a.float() @ b.float() for a, b in zip(x.chunk(8, -1), self.w.chunk(8, 0))]
    return torch.stack(parts).flip(0).sum(0).to(x.dtype)


def reversed_matmul(self, x):
    return (x.flip(-1).float() @ self.w.flip(0).float()).to(x.dtype)


def softmax_exp2(self, x):
    y = x.float() * 1.4426950408889634
    p = torch.exp2(y - y.amax(-1, keepdim=True))
    return (p / p.sum(-1, keepdim=True)).to(x.dtype)


def softmax_online(self, x):
    top, total = torch.full(x.shape[:-1], -math.inf), torch.zeros(x.shape[:-1])
    for part in x.float().split(16, -1):
        new = torch.maximum(top, part.amax(-1))
        total = total * (top - new).exp() + (part - new[..., None]).exp().sum(-1)
        top = new
    return ((x.float() - top[..., None]).exp() / total[..., None]).to(x.dtype)


def norm_two_pass(self, x):
    y = x.float()
    return functional.layer_norm(y, y.shape[-1:], self.w.float(), self.b.float()).to(x.dtype)


def norm_one_pass(self, x):
    y = x.float()
    mean = y.mean(-1, keepdim=True)
    variance = y.pow(2).mean(-1, keepdim=True) - mean * mean
    return ((y - mean) * torch.rsqrt(variance + 1e-5) * self.w.float() + self.b.float()).to(x.dtype)


def norm_rounding_often(self, x):
    y = x.float()
    mean, variance = y.mean(-1, keepdim=True), y.var(-1, unbiased=False, keepdim=True)
    z = ((y - mean) * torch.rsqrt(variance + 1e-5)).to(x.dtype)
    return (z * self.w).to(x.dtype) + self.b


def silu_fused(self, x):
    return functional.silu(x)


def silu_by_parts(self, x):
    return x * torch.sigmoid(x)


def gelu_fused(self, x):
    return functional.gelu(x)


def gelu_by_parts(self, x):
    y = x.float()
    return (y * 0.5 * (1 + torch.erf(y * 0.7071067811865476))).to(x.dtype)


def gelu_tanh(self, x):
    return functional.gelu(x, approximate="tanh")


def gelu_tanh_by_parts(self, x):
    y = x.float()
    return (0.5 * y * (1 + torch.tanh(0.7978845608028654 * (y + 0.044715 * y * y * y)))).to(x.dtype)


def swiglu(self, x):
    a, b = x.chunk(2, -1)
    return (functional.silu(a.float()) * b.float()).to(x.dtype)


def swiglu_rounding_often(self, x):
    a, b = x.chunk(2, -1)
    return functional.silu(a) * b


def sdpa(self, q, k, v):
    return functional.scaled_dot_product_attention(q, k, v, is_causal=True)


def attention_eager(self, q, k, v):
    s = (q @ k.transpose(-1, -2)) * q.shape[-1] ** -0.5
    mask = torch.ones(s.shape[-2:], dtype=torch.bool).tril()
    p = s.float().masked_fill(~mask, -math.inf).softmax(-1).to(q.dtype)
    return p @ v


def attention_scaled_first(self, q, k, v):
    s = (q * q.shape[-1] ** -0.5).float() @ k.float().transpose(-1, -2)
    mask = torch.ones(s.shape[-2:], dtype=torch.bool).tril()
    return (s.masked_fill(~mask, -1e30).softmax(-1) @ v.float()).to(q.dtype)


def mean_plain(self, x):
    return x.float().mean(1).to(x.dtype)


def mean_by_blocks(self, x):
    return torch.stack([part.float().sum(1) for part in x.chunk(16, 1)]).sum(0).div(x.shape[1]).to(x.dtype)


def variance_two_pass(self, x):
    return x.var(-1, unbiased=False)


def variance_one_pass(self, x):
    return x.pow(2).mean(-1) - x.mean(-1).pow(2)


def logsumexp(self, x):
    return x.logsumexp(-1)


def logsumexp_by_parts(self, x):
    top = x.amax(-1, keepdim=True)
    return ((x - top).exp().sum(-1).log() + top[..., 0]).to(x.dtype)


def cross_entropy(self, x):
    return functional.cross_entropy(x.float(), torch.arange(len(x)) % x.shape[-1])


def cross_entropy_by_parts(self, x):
    y = x.float()
    picked = y[torch.arange(len(y)), torch.arange(len(y)) % y.shape[-1]]
    return (y.exp().sum(-1).log() - picked).flip(0).mean()


def divide(self, x):
    return x / 3.0


def multiply_by_reciprocal(self, x):
    return x * (1.0 / 3.0)


def rsqrt(self, x):
    return torch.rsqrt(x.abs() + 1)


def one_over_sqrt(self, x):
    return 1 / torch.sqrt(x.abs() + 1)


def cumulative(self, x):
    return x.float().cumsum(-1).to(x.dtype)


def cumulative_blocked(self, x):
    parts, carry = [], torch.zeros((*x.shape[:-1], 1))
    for part in x.float().split(32, -1):
        parts.append(part.cumsum(-1) + carry)
        carry = parts[-1][..., -1:]
    return torch.cat(parts, -1).to(x.dtype)


def sigmoid(self, x):
    return torch.sigmoid(x)


def sigmoid_by_tanh(self, x):
    return (0.5 * torch.tanh(0.5 * x.float()) + 0.5).to(x.dtype)


def polynomial(self, x):
    return 1 + x + x * x / 2 + x**3 / 6


def horner(self, x):
    return 1 + x * (1 + x * (0.5 + x * 0.16666667))


def scatter_sum(self, x):
    index = torch.arange(len(x)) % 7
    return torch.zeros(7, x.shape[1], dtype=x.dtype).index_add(0, index, x)


def scatter_sum_reversed(self, x):
    index = torch.arange(len(x)) % 7
    return torch.zeros(7, x.shape[1], dtype=x.dtype).index_add(0, index.flip(0), x.flip(0))


_PAIRS = {
    "matmul_split_k": (reversed_matmul, split_matmul, (16, 512)),
    "softmax_exp2": (lambda self, x: x.float().softmax(-1).to(x.dtype), softmax_exp2, (32, 200)),
    "softmax_online": (lambda self, x: x.float().softmax(-1).to(x.dtype), softmax_online, (32, 200)),
    "norm_one_pass": (norm_two_pass, norm_one_pass, (32, 256)),
    "norm_rounding_often": (norm_two_pass, norm_rounding_often, (32, 256)),
    "silu_by_parts": (silu_fused, silu_by_parts, (32, 256)),
    "gelu_by_parts": (gelu_fused, gelu_by_parts, (32, 256)),
    "gelu_tanh_by_parts": (gelu_tanh, gelu_tanh_by_parts, (32, 256)),
    "swiglu_rounding_often": (swiglu, swiglu_rounding_often, (32, 256)),
    "mean_by_blocks": (mean_plain, mean_by_blocks, (4, 300, 16)),
    "variance_one_pass": (variance_two_pass, variance_one_pass, (64, 128)),
    "logsumexp_by_parts": (logsumexp, logsumexp_by_parts, (64, 128)),
    "cross_entropy_by_parts": (cross_entropy, cross_entropy_by_parts, (64, 128)),
    "reciprocal": (divide, multiply_by_reciprocal, (32, 256)),
    "one_over_sqrt": (rsqrt, one_over_sqrt, (32, 256)),
    "cumulative_blocked": (cumulative, cumulative_blocked, (8, 256)),
    "sigmoid_by_tanh": (sigmoid, sigmoid_by_tanh, (32, 256)),
    "horner": (polynomial, horner, (32, 256)),
    "scatter_in_another_order": (scatter_sum, scatter_sum_reversed, (200, 16)),
}
# what needs float32 accumulation to be conforming at all is not tried below it
_FLOAT32_ONLY = ("variance_one_pass", "horner")


def _register(name: str, dtype_name: str, phase: str) -> None:
    way, other, shape = _PAIRS[name]

    def build(faulty: bool) -> Pair:
        torch.manual_seed(len(name))
        dtype = DTYPES[dtype_name]
        width = shape[-1]
        w = torch.randn(width, 24) if "matmul" in name else torch.rand(width) + 0.5
        inner = Code((way, other), faulty, w=w.to(dtype), b=(torch.randn(width) * 0.1).to(dtype))
        model = nn.Sequential()
        model.add_module("before", nn.Identity())
        model.add_module("code", inner)
        return model, (torch.randn(shape).to(dtype).requires_grad_(phase != "forward"),)

    build.__name__ = f"{name}_{dtype_name}" + ("" if phase == "forward" else f"_{phase}")
    case(None, "conforming builds", phase=phase)(build)


for _name in _PAIRS:
    _register(_name, "fp32", "backward")
    if _name not in _FLOAT32_ONLY:
        _register(_name, "bf16", "backward")


class AttentionNet(nn.Module):
    def __init__(self, way) -> None:
        super().__init__()
        self.qkv, self.core, self.out = nn.Linear(32, 96), Code((way, way), False), nn.Linear(32, 32)

    def forward(self, x):
        q, k, v = (part.view(2, -1, 4, 8).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        return self.out(self.core(q, k, v).transpose(1, 2).reshape(x.shape))


def _register_attention(name: str, way, dtype_name: str) -> None:
    def build(faulty: bool) -> Pair:
        torch.manual_seed(11)
        model = AttentionNet(way if faulty else sdpa).to(DTYPES[dtype_name])
        return model, (torch.randn(2, 40, 32).to(DTYPES[dtype_name]).requires_grad_(),)

    build.__name__ = f"{name}_{dtype_name}"
    case(None, "fused against eager attention", phase="backward")(build)


for _dtype in DTYPES:
    _register_attention("attention_eager", attention_eager, _dtype)
    _register_attention("attention_scaled_first", attention_scaled_first, _dtype)
