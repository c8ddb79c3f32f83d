"""Float64 reference of group normalisation, with or without a SiLU behind it."""

from __future__ import annotations

import torch


def group_norm(
    x: torch.Tensor,
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    *,
    groups: int,
    eps: float = 1e-5,
    activation: str = "none",
) -> torch.Tensor:
    """Normalise (N, C, ...) over each group of C / ``groups`` consecutive channels and all positions. Returns its
    shape.

    y = (x - mean) / sqrt(var + eps) * weight[c] + bias[c], var biased; ``activation``: "none" or "silu" (y sigmoid(y)).
    Source: Wu and He, arXiv:1803.08494, eq. 7.
    """
    parts = x.double().unflatten(1, (groups, x.shape[1] // groups)).flatten(2)
    centred = parts - parts.mean(dim=-1, keepdim=True)
    variance = centred.square().mean(dim=-1, keepdim=True)
    y = (centred / torch.sqrt(variance + eps)).reshape(x.shape)
    channels = (1, -1) + (1,) * (x.dim() - 2)
    y = y if weight is None else y * weight.double().reshape(channels)
    y = y if bias is None else y + bias.double().reshape(channels)
    return y * torch.sigmoid(y) if activation == "silu" else y
