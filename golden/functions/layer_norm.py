"""Float64 reference of layer normalisation."""

from __future__ import annotations

import torch


def layer_norm(
    x: torch.Tensor,
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    *,
    eps: float = 1e-5,
    dims: int = 1,
) -> torch.Tensor:
    """(x - mean) / sqrt(variance + eps) * weight + bias over the last ``dims`` dimensions. Returns the shape of ``x``.

    The variance is the biased one (divided by n). ``weight`` and ``bias`` have the shape of those dimensions.
    """
    x = x.double()
    over = tuple(range(-dims, 0))
    centred = x - x.mean(dim=over, keepdim=True)
    y = centred / torch.sqrt(centred.square().mean(dim=over, keepdim=True) + eps)
    y = y if weight is None else y * weight.double()
    return y if bias is None else y + bias.double()
