"""Float64 reference of multi-scale deformable attention."""

from __future__ import annotations

import torch


def deformable_attention(
    value: torch.Tensor, shapes: tuple[tuple[int, int], ...], places: torch.Tensor, weights: torch.Tensor
) -> torch.Tensor:
    """Weighted sum of values sampled on every level. Returns (B, Q, N * D).

    ``value`` (B, sum of H W, N, D), the levels one after the other; ``shapes`` their (H, W); ``places``
    (B, Q, N, L, P, 2) as (x, y) in [0, 1] (pixel centres at (i + 1/2) / W); ``weights`` (B, Q, N, L, P). Beyond a level
    lies 0. Source: Zhu and others, arXiv:2010.04159, eq. 3; mmcv's MultiScaleDeformableAttention.
    """
    value, places, weights = value.double(), places.double(), weights.double()
    total, start = torch.zeros((), dtype=torch.float64, device=value.device), 0
    for level, (height, width) in enumerate(shapes):
        pixels = value[:, start : start + height * width].transpose(1, 2)
        start += height * width
        x = places[:, :, :, level, :, 0] * width - 0.5
        y = places[:, :, :, level, :, 1] * height - 0.5
        for dy in (0, 1):
            for dx in (0, 1):
                column, row = torch.floor(x.detach()).long() + dx, torch.floor(y.detach()).long() + dy
                share = (1 - (x - column).abs()) * (1 - (y - row).abs()) * weights[:, :, :, level]
                inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
                index = (row.clamp(0, height - 1) * width + column.clamp(0, width - 1)).transpose(1, 2)
                flat = index.flatten(2)[..., None].expand(-1, -1, -1, value.shape[-1])
                found = pixels.gather(2, flat).unflatten(2, index.shape[2:]).transpose(1, 2)
                total = total + (found * (share * inside)[..., None]).sum(dim=-2)
    return total.flatten(2)
