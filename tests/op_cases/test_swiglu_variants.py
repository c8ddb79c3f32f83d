"""Every wrong SwiGLU is caught by a case, every conforming one passes them all."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch.nn import functional

Tensor = torch.Tensor


def split(x: Tensor, dim: int, gate_first: bool) -> tuple[Tensor, Tensor]:
    if x.shape[dim] % 2:
        raise ValueError("odd size")
    first, second = x.float().chunk(2, dim=dim)
    return (first, second) if gate_first else (second, first)


def build(activation: Any, *, product: Any = torch.mul) -> Any:
    def compute(x: Tensor, *, dim: int = -1, gate_first: bool = True) -> Tensor:
        gate, up = split(x, dim, gate_first)
        return product(activation(gate), up).to(x.dtype)

    return compute


def ignore_order(x: Tensor, *, dim: int = -1, gate_first: bool = True) -> Tensor:
    return build(functional.silu)(x, dim=dim)


def swap(x: Tensor, *, dim: int = -1, gate_first: bool = True) -> Tensor:
    return build(functional.silu)(x, dim=dim, gate_first=not gate_first)


def ignore_dim(x: Tensor, *, dim: int = -1, gate_first: bool = True) -> Tensor:
    y = build(functional.silu)(x.transpose(dim, -1).contiguous(), gate_first=gate_first)
    return y.transpose(dim, -1) if dim == -1 else y.reshape(build(functional.silu)(x, dim=dim).shape)


def interleave(x: Tensor, *, dim: int = -1, gate_first: bool = True) -> Tensor:
    """Even and odd elements instead of halves, as npu_clipped_swiglu pairs them."""
    split(x, dim, gate_first)
    size = x.shape[dim] // 2
    order = torch.arange(2 * size).view(size, 2).t().reshape(-1)
    return build(functional.silu)(x.index_select(dim, order), dim=dim, gate_first=gate_first)


def accept_odd(x: Tensor, *, dim: int = -1, gate_first: bool = True) -> Tensor:
    size = x.shape[dim] // 2
    return build(functional.silu)(x.narrow(dim, 0, 2 * size), dim=dim, gate_first=gate_first)


def saturate(x: Tensor, *, dim: int = -1, gate_first: bool = True) -> Tensor:
    gate, up = split(x, dim, gate_first)
    top = torch.finfo(x.dtype).max
    return (functional.silu(gate) * up).clamp(-top, top).to(x.dtype)


def drop_late_rows(x: Tensor, *, dim: int = -1, gate_first: bool = True) -> Tensor:
    """A 16-bit row counter."""
    y = build(functional.silu)(x, dim=dim, gate_first=gate_first)
    keep = (torch.arange(y.shape[0]) < 65536).view(-1, *[1] * (y.dim() - 1))
    return y * keep


def drop_tile_tail(x: Tensor, *, dim: int = -1, gate_first: bool = True) -> Tensor:
    """Halves of more than 64: what is beyond the last whole tile of 64 is not written."""
    y = build(functional.silu)(x, dim=dim, gate_first=gate_first)
    width = y.shape[dim]
    keep = torch.arange(width) < (width if width < 64 else width // 64 * 64)
    return y * keep.view([-1 if d == dim % y.dim() else 1 for d in range(y.dim())])


def ignore_strides(x: Tensor, *, dim: int = -1, gate_first: bool = True) -> Tensor:
    """Reads the storage from the tensor's start as if it were contiguous."""
    strides = torch.empty(x.shape, device="meta").stride()
    raw = x.as_strided(x.shape, strides, x.storage_offset())
    return build(functional.silu)(raw, dim=dim, gate_first=gate_first)


def truncate(x: Tensor, *, dim: int = -1, gate_first: bool = True) -> Tensor:
    """Rounds towards zero when it stores, and 16 bits of a float32 are cut off."""
    y = build(functional.silu)(x.float(), dim=dim, gate_first=gate_first)
    if x.dtype == torch.float32:
        return y
    near = y.to(x.dtype)
    away = near.float().abs() > y.abs()
    return torch.where(away, torch.nextafter(near, torch.zeros_like(near)), near)


def keep_float32(x: Tensor, *, dim: int = -1, gate_first: bool = True) -> Tensor:
    return build(functional.silu)(x.float(), dim=dim, gate_first=gate_first)


def forget_nan(x: Tensor, *, dim: int = -1, gate_first: bool = True) -> Tensor:
    return torch.nan_to_num(build(functional.silu)(x, dim=dim, gate_first=gate_first), nan=0.0, posinf=math.inf)


def rewrite_input(x: Tensor, *, dim: int = -1, gate_first: bool = True) -> Tensor:
    y = build(functional.silu)(x.clone(), dim=dim, gate_first=gate_first)
    with torch.no_grad():
        x.detach().mul_(0.5)
    return y


class WrongSlope(torch.autograd.Function):
    """silu whose gradient forgets the second term, sigmoid(a) (1 + a (1 - sigmoid(a)))."""

    @staticmethod
    def forward(ctx: Any, gate: Tensor) -> Tensor:
        ctx.save_for_backward(gate)
        return functional.silu(gate)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (gate,) = ctx.saved_tensors
        return gradient * torch.sigmoid(gate)


def tabulate(gate: Tensor) -> Tensor:
    """A sigmoid from a table with 1e-4 steps."""
    exact = torch.sigmoid(gate)
    return gate * (exact + (torch.round(exact * 1e4) / 1e4 - exact).detach())


def by_exp2(gate: Tensor) -> Tensor:
    """The sigmoid from a power of two that never overflows."""
    power = torch.exp2(-gate.abs() * math.log2(math.e))
    return gate * torch.where(gate >= 0, 1 / (1 + power), power / (1 + power))


def in_float64(x: Tensor, *, dim: int = -1, gate_first: bool = True) -> Tensor:
    gate, up = split(x, dim, gate_first)
    return (functional.silu(gate.double()) * up).to(x.dtype)


WRONG = {
    "gate and up swapped": swap,
    "order of the halves ignored": ignore_order,
    "dimension ignored": ignore_dim,
    "even and odd for halves": interleave,
    "gelu": build(functional.gelu),
    "tanh gelu": build(lambda gate: functional.gelu(gate, approximate="tanh")),
    "quick gelu": build(lambda gate: gate * torch.sigmoid(1.702 * gate)),
    "hard swish": build(functional.hardswish),
    "sigmoid alone": build(torch.sigmoid),
    "relu": build(torch.relu),
    "sum for product": build(functional.silu, product=torch.add),
    "sigmoid from a table": build(tabulate),
    "exp(-a) overflows to NaN": build(lambda gate: gate * (1 - torch.exp(-gate) / (1 + torch.exp(-gate)))),
    "gate clipped at 7": build(lambda gate: functional.silu(gate.clamp(max=7.0))),
    "odd size accepted": accept_odd,
    "saturates": saturate,
    "16-bit row counter": drop_late_rows,
    "tail of a tile of 64": drop_tile_tail,
    "strides ignored": ignore_strides,
    "truncating store": truncate,
    "result in float32": keep_float32,
    "NaN becomes 0": forget_nan,
    "input rewritten": rewrite_input,
    "gradient without its second term": build(WrongSlope.apply),
}

CONFORMING = {
    "fused, one rounding": build(functional.silu),
    "by exp2": build(by_exp2),
    "in float64": in_float64,
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_swiglu_is_caught(bench: Any, name: str) -> None:
    assert bench.catches("swiglu", WRONG[name]), f"no case catches: {name}"


@pytest.mark.parametrize("name", CONFORMING)
def test_conforming_swiglu_passes(bench: Any, name: str) -> None:
    assert bench.failures("swiglu", CONFORMING[name]) == []
