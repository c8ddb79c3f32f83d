"""Every conforming SwiGLU passes all cases; `case prove` shows that wrong ones fail."""

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


def by_exp2(gate: Tensor) -> Tensor:
    """The sigmoid from a power of two that never overflows."""
    power = torch.exp2(-gate.abs() * math.log2(math.e))
    return gate * torch.where(gate >= 0, 1 / (1 + power), power / (1 + power))


def in_float64(x: Tensor, *, dim: int = -1, gate_first: bool = True) -> Tensor:
    gate, up = split(x, dim, gate_first)
    return (functional.silu(gate.double()) * up).to(x.dtype)


CONFORMING = {
    "fused, one rounding": build(functional.silu),
    "by exp2": build(by_exp2),
    "in float64": in_float64,
}


@pytest.mark.parametrize("name", CONFORMING)
def test_conforming_swiglu_passes(bench: Any, name: str) -> None:
    assert bench.failures("swiglu", CONFORMING[name]) == []
