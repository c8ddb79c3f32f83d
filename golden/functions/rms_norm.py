"""Float64 reference of root-mean-square normalisation."""

from __future__ import annotations

import torch


def rms_norm(
    x: torch.Tensor, weight: torch.Tensor | None = None, *, eps: float = 1e-6, offset: float = 0.0
) -> torch.Tensor:
    """x / sqrt(mean(x^2) + eps) * (offset + weight) over the last dimension. Returns the shape of ``x``.

    ``x`` (..., C), ``weight`` (C,) or None for ones; ``offset`` 1.0 for Gemma, whose weights start at zero.
    """
    x = x.double()
    y = x / torch.sqrt(x.square().mean(dim=-1, keepdim=True) + eps)
    return y if weight is None else y * (offset + weight.double())
