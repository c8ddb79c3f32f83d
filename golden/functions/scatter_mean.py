"""Float64 reference of scatter_mean: the mean of rows by index."""

from __future__ import annotations

import torch


def scatter_mean(src: torch.Tensor, index: torch.Tensor, *, size: int) -> torch.Tensor:
    """out[g] = mean of the rows src[i] with index[i] = g. Returns (size, ...).

    ``src`` (M, ...), ``index`` (M,) whole numbers below ``size``; a group without members is 0.
    Source: torch_scatter.scatter_mean's documentation.
    """
    x = src.double()
    rows = []
    for group in range(size):
        members = x[index == group]
        rows.append(members.sum(dim=0) / max(members.shape[0], 1))
    return torch.stack(rows)
