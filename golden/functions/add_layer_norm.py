"""Float64 reference of a residual addition fused with layer normalisation."""

from __future__ import annotations

import torch


def add_layer_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, *, eps: float = 1e-5
) -> tuple[torch.Tensor, torch.Tensor]:
    """s = x + residual; ((s - mean) / sqrt(var + eps) * weight + bias, s). Both (..., C); ``weight``, ``bias`` (C,).

    var is the biased variance. Source: Ba, Kiros and Hinton, arXiv:1607.06450, eq. 4; npu_add_layer_norm.
    """
    total = x.double() + residual.double()
    centred = total - total.mean(dim=-1, keepdim=True)
    variance = centred.square().mean(dim=-1, keepdim=True)
    return centred / torch.sqrt(variance + eps) * weight.double() + bias.double(), total
