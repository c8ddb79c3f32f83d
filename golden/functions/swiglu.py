"""Float64 reference of the SwiGLU activation of a packed projection."""

from __future__ import annotations

import torch


def swiglu(x: torch.Tensor, *, dim: int = -1, gate_first: bool = True) -> torch.Tensor:
    """silu(gate) * up, silu(a) = a / (1 + exp(-a)). Returns ``x`` with ``dim`` halved.

    ``x`` holds both along ``dim``, of even size: gate | up, or up | gate where ``gate_first`` is false.
    Raises ValueError for an odd size.
    """
    size = x.shape[dim]
    if size % 2:
        raise ValueError(f"dimension {dim} has the odd size {size}; it must hold gate and up of equal size")
    first, second = torch.chunk(x.double(), 2, dim=dim)
    gate, up = (first, second) if gate_first else (second, first)
    # sigmoid, not 1 / (1 + exp(-a)): the same function, but exp(-a) would overflow in its gradient for a << 0
    y: torch.Tensor = gate * torch.sigmoid(gate) * up
    return y
