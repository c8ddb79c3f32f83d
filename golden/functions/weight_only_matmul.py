"""Float64 reference of a product with a weight in int8 or packed int4."""

from __future__ import annotations

import torch


def weight_only_matmul(
    x: torch.Tensor,
    weight: torch.Tensor,
    scale: torch.Tensor,
    offset: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    *,
    group: int = 0,
    packed: bool = False,
) -> torch.Tensor:
    """x ((weight + offset) * scale) + bias. Returns (M, N) in the dtype of ``x``.

    ``x`` (M, K); ``weight`` int8 (K, N), or where ``packed`` int8 (K, N / 2): two int4, the low four bits first;
    ``scale`` and ``offset`` (N,), or with ``group`` G (K / G, N). The offset is minus the zero point. Source:
    npu_weight_quant_batchmatmul's documentation; Lin and others, arXiv:2306.00978 (AWQ).
    """
    if packed:
        low, high = weight & 15, (weight >> 4) & 15
        weight = torch.stack([low, high], dim=-1).flatten(-2)
        weight = torch.where(weight > 7, weight - 16, weight)
    w = weight.double()
    if offset is not None:
        w = w + (offset.double().repeat_interleave(group, dim=0) if group else offset.double())
    w = w * (scale.double().repeat_interleave(group, dim=0) if group else scale.double())
    y = x.double() @ w
    return y if bias is None else y + bias.double()
