"""Float64 reference of RMSNorm fused with quantisation to int8."""

from __future__ import annotations

import torch


def rms_norm_quant(
    x: torch.Tensor,
    weight: torch.Tensor,
    scale: torch.Tensor | None = None,
    offset: torch.Tensor | None = None,
    *,
    eps: float = 1e-6,
) -> tuple[torch.Tensor, ...]:
    """int8 of y / scale + offset, y = x / sqrt(mean(x^2) + eps) * weight; without ``scale`` by token, with the scale.

    ``x`` (..., C), ``weight`` (C,), ``scale`` and ``offset`` (1,). By token: s = max|y| / 127 and (int8, s (...)).
    Halves to even. Source: npu_rms_norm_quant and npu_add_rms_norm_dynamic_quant in op-plugin's documentation.
    """
    x = x.double()
    y = x / torch.sqrt(x.square().mean(dim=-1, keepdim=True) + eps) * weight.double()
    if scale is not None:
        steps = y / scale.double() + (0.0 if offset is None else offset.double())
        return (torch.round(steps).clamp(-128, 127).to(torch.int8),)
    token = y.abs().amax(dim=-1) / 127
    safe = torch.where(token > 0, token, torch.ones_like(token))[..., None]
    return torch.round(y / safe).clamp(-128, 127).to(torch.int8), token
