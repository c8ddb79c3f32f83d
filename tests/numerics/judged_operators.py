"""Operators with their golden results, and conforming builds of them: no more than roundings apart."""

from __future__ import annotations

import copy
import math

import torch
from torch import nn
from torch.nn import functional

from precision_align.core.dtypes import dtype_of
from precision_align.numerics.judgement import judge
from precision_align.replay.scales import DRAWS, estimate_scale, find_scale, perturb

F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16
DTYPES = [F32, F16, BF16]
LOW = [F16, BF16]


def draw(shape, kind, seed):
    """Data of one kind: normal, same-signed, heavy-tailed, tiny, large, or cancelling halves."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(*shape, generator=generator)
    if kind == "positive":
        return x.abs()
    if kind == "tail":
        return x * torch.exp(2 * torch.randn(*shape, generator=generator))
    if kind == "cancel":
        half = x[..., : shape[-1] // 2]
        return torch.cat([half, -half + 1e-3 * torch.randn(half.shape, generator=generator)], -1)
    return x * {"normal": 1.0, "tiny": 1e-4, "large": 100.0}[kind] + (1.0 if kind == "mean" else 0.0)


class Operator:
    """A stock module in a dtype, an input for it, and the verdict on any other build's output."""

    def __init__(self, module, x, dtype):
        self.dtype = dtype
        self.module = module.to(dtype)
        self.x = x.to(dtype)
        with torch.no_grad():
            self.native = self.module(self.x)
            self.wide = nn.Module.to(copy.deepcopy(self.module), torch.float64)
            self.golden = self.wide(self.x.double())

    def tensors(self):
        return [self.x.float(), *(p.detach().float() for p in self.module.parameters())]

    def judge(self, output, formula=True):
        golden = self.golden.numpy()
        scale = find_scale(self.wide, [self.x.double()], golden) if formula else None
        name = str(self.dtype)[6:]
        if scale is None:
            runs = []
            for seed in range(DRAWS):
                change = perturb(torch.Generator().manual_seed(seed))
                module = copy.deepcopy(self.wide)
                with torch.no_grad():
                    for parameter in module.parameters():
                        parameter.copy_(change(parameter.detach()))
                    runs.append(module(change(self.x.double())).numpy())
            scale = estimate_scale(golden, runs, name)
        values = [tensor.double().numpy() for tensor in (output.to(self.dtype), self.native)]
        return judge(values[0], golden, values[1], scale, dtype_of(name))


def linear(length, kind, dtype, seed=0, bias=True, rows=32, columns=64):
    torch.manual_seed(seed)  # for the module's own bias
    module = nn.Linear(length, columns, bias=bias)
    with torch.no_grad():
        module.weight.copy_(draw((columns, length), "positive" if kind == "positive" else "normal", seed + 1))
        module.weight.div_(math.sqrt(length))
    return Operator(module, draw((rows, length), kind, seed), dtype)


def layer_norm(length, kind, dtype, seed=0, mean=0.0, scale=1.0, eps=1e-5, rows=24):
    module = nn.LayerNorm(length, eps=eps)
    with torch.no_grad():
        module.weight.copy_(1 + 0.1 * draw((length,), "normal", seed + 1))
        module.bias.copy_(0.1 * draw((length,), "normal", seed + 2))
    return Operator(module, draw((rows, length), kind, seed) * scale + mean, dtype)


def split_sum(op, chunks=8, seed=0, part_dtype=F32, total_dtype=F32):
    """y = x W^T + b with K in a random order and in partial sums; each, and their running total, in its dtype."""
    x, weight, *bias = op.tensors()
    order = torch.randperm(x.shape[-1], generator=torch.Generator().manual_seed(seed))
    total = torch.zeros(x.shape[0], weight.shape[0])
    for part in order.chunk(min(chunks, x.shape[-1])):
        total = (total + (x[:, part] @ weight[:, part].T).to(part_dtype).float()).to(total_dtype).float()
    return (total + bias[0] if bias else total).to(op.dtype)


def sequential(op, block=16):
    x, weight, *bias = op.tensors()
    total = torch.zeros(x.shape[0], weight.shape[0])
    for start in range(0, x.shape[-1], block):
        total = total + x[:, start : start + block] @ weight[:, start : start + block].T
    return (total + bias[0] if bias else total).to(op.dtype)


def rounded_before_bias(op):
    x, weight, bias = op.tensors()
    return (split_sum_plain(x, weight).to(op.dtype).float() + bias).to(op.dtype)


def split_sum_plain(x, weight):
    half = x.shape[-1] // 2
    return x[:, half:] @ weight[:, half:].T + x[:, :half] @ weight[:, :half].T


def one_pass_norm(op):
    x, weight, bias = op.tensors()
    mean = x.mean(-1, keepdim=True)
    variance = (x * x).mean(-1, keepdim=True) - mean * mean
    return ((x - mean) * torch.rsqrt(variance + op.module.eps) * weight + bias).to(op.dtype)


def small_operator_norm(op):
    x, weight, bias = op.tensors()
    cut = lambda t: t.to(op.dtype).float()  # noqa: E731
    mean = x.mean(-1, keepdim=True)
    variance = (x - mean).square().mean(-1, keepdim=True)
    normed = cut((x - mean) * torch.rsqrt(variance + op.module.eps))
    return (cut(normed * weight) + bias).to(op.dtype)


def exp2_softmax(op):
    x = op.x.float()
    e = torch.exp2((x - x.amax(-1, keepdim=True)) * 1.4426950408889634)
    return (e / e.flip(-1).sum(-1, keepdim=True)).to(op.dtype)


def online_softmax(op, block=32):
    """Running maximum and sum, as fused attention kernels do."""
    x = op.x.float()
    top, total = torch.full_like(x[..., :1], -math.inf), torch.zeros_like(x[..., :1])
    for part in x.split(block, -1):
        new = torch.maximum(top, part.amax(-1, keepdim=True))
        total = total * torch.exp(top - new) + torch.exp(part - new).sum(-1, keepdim=True)
        top = new
    return (torch.exp(x - top) / total).to(op.dtype)


LINEAR_BUILDS = {
    "split-K": split_sum,
    "split-K 3": lambda op: split_sum(op, 3, 5),
    "sequential": sequential,
    "float32 kernel": lambda op: functional.linear(*op.tensors()).to(op.dtype),
}
KINDS = ["normal", "positive", "tail", "tiny", "large", "cancel"]
