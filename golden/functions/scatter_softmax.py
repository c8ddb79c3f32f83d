"""Float64 reference of softmax within groups of rows."""

from __future__ import annotations

import torch


def scatter_softmax(src: torch.Tensor, index: torch.Tensor, *, size: int) -> torch.Tensor:
    """exp(x_i - max) / sum of exp(x_j - max) over j with index[j] = index[i]. Returns (M, C), the shape of ``src``.

    ``index`` (M,) whole numbers below ``size``. Source: torch_scatter.scatter_softmax's documentation.
    """
    x = src.double()
    same = index[:, None] == index[None, :]
    if x.shape[0] == 0:
        return x
    least = torch.full((), -torch.inf, dtype=torch.float64)
    top = torch.where(same[..., None], x.detach()[None], least).amax(dim=1)
    powers = torch.exp(x - top)
    parts = torch.where(same[..., None], powers[None], torch.zeros((), dtype=torch.float64))
    return powers / parts.sum(dim=1)
