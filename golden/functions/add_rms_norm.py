"""Float64 reference of a residual addition fused with root-mean-square normalisation."""

from __future__ import annotations

import torch


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, *, eps: float = 1e-6
) -> tuple[torch.Tensor, torch.Tensor]:
    """s = x + residual; (s / sqrt(mean(s^2) + eps) * weight, s). Both (..., C), ``weight`` (C,).

    Source: npu_add_rms_norm's documentation; RMSNorm: Zhang and Sennrich, arXiv:1910.07467, eq. 4.
    """
    total = x.double() + residual.double()
    mean_square = total.square().mean(dim=-1, keepdim=True)
    return total / torch.sqrt(mean_square + eps) * weight.double(), total
