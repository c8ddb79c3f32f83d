"""Float64 reference of softmax and log-softmax."""

from __future__ import annotations

import torch


def softmax(x: torch.Tensor, *, dim: int = -1, log: bool = False) -> torch.Tensor:
    """exp(x - max) / sum(exp(x - max)) along ``dim``, or its logarithm. Returns the shape of ``x`` (any).

    A slice that is minus infinity throughout gives NaN, as in PyTorch. Source: Blanchard, Higham and Higham,
    "Accurately computing the log-sum-exp and softmax functions" (2021), eq. 1.2.
    """
    x = x.double()
    if x.dim() == 0 or x.numel() == 0:
        return x - x if log else torch.ones_like(x) + 0 * x
    shifted = x - x.detach().amax(dim=dim, keepdim=True)
    powers = torch.exp(shifted)
    total = powers.sum(dim=dim, keepdim=True)
    return shifted - torch.log(total) if log else powers / total
