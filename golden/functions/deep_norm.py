"""Float64 reference of DeepNorm."""

from __future__ import annotations

import torch


def deep_norm(
    x: torch.Tensor,
    gx: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    *,
    alpha: float = 0.3,
    eps: float = 1e-6,
) -> torch.Tensor:
    """LayerNorm(alpha x + gx) * weight + bias over the last dimension. Returns (..., C).

    Source: Wang and others, arXiv:2203.00555, fig. 2; npu_deep_norm (its default alpha is 0.3).
    """
    total = alpha * x.double() + gx.double()
    centred = total - total.mean(dim=-1, keepdim=True)
    variance = centred.square().mean(dim=-1, keepdim=True)
    return centred / torch.sqrt(variance + eps) * weight.double() + bias.double()
