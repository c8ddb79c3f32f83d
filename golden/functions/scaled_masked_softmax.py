"""Float64 reference of Megatron's fused scale, mask and softmax."""

from __future__ import annotations

import math

import torch


def scaled_masked_softmax(
    x: torch.Tensor, mask: torch.Tensor | None = None, *, scale: float = 1.0, causal: bool = False
) -> torch.Tensor:
    """softmax(scale x) over the last dimension, masked elements left out. Returns (B, N, Sq, Skv), the shape of ``x``.

    ``mask`` boolean, broadcasts to ``x``, True = masked OUT; ``causal``: elements above the diagonal are masked too. A
    row without any element gives zeros. Source: Megatron-LM's ScaledMaskedSoftmax and ScaledUpperTriangMaskedSoftmax
    (which fill with -10000; a float64 softmax cannot tell it from -inf at scores below 9000).
    """
    scores = scale * x.double()
    hidden = torch.zeros(x.shape, dtype=torch.bool, device=x.device)
    hidden = hidden if mask is None else hidden | mask
    if causal:
        hidden = hidden | torch.ones(x.shape[-2:], dtype=torch.bool, device=x.device).triu(1)
    empty = hidden.all(dim=-1, keepdim=True)
    scores = scores.masked_fill(hidden, -math.inf).masked_fill(empty, 0.0)
    powers = torch.exp(scores - scores.detach().amax(dim=-1, keepdim=True))
    return (powers / powers.sum(dim=-1, keepdim=True)).masked_fill(hidden, 0.0)
