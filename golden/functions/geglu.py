"""Float64 reference of the GEGLU activation of a packed projection."""

from __future__ import annotations

import math

import torch


def geglu(x: torch.Tensor, *, dim: int = -1, approximate: str = "none", gate_first: bool = False) -> torch.Tensor:
    """gelu(gate) * up. Returns ``x`` with ``dim`` halved.

    ``x`` holds up | gate along ``dim`` (diffusers, npu_geglu with activate_left=False), gate | up where ``gate_first``.
    ``approximate``: "none" (erf) or "tanh". Source: Shazeer, arXiv:2002.05202, eq. 6.
    Raises ValueError for an odd size.
    """
    if x.shape[dim] % 2:
        raise ValueError(f"dimension {dim} has the odd size {x.shape[dim]}; it must hold gate and up of equal size")
    up, gate = torch.chunk(x.double(), 2, dim=dim)
    if gate_first:
        up, gate = gate, up
    if approximate == "tanh":
        return up * gate * torch.sigmoid(2 * math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3))
    return up * (0.5 * gate * torch.erfc(gate * -math.sqrt(0.5)))
