"""Float64 reference of scatter_sum: rows added up by index."""

from __future__ import annotations

import torch


def scatter_add(src: torch.Tensor, index: torch.Tensor, *, size: int, dim: int = 0) -> torch.Tensor:
    """out[.., index[i], ..] = sum of the slices src[.., i, ..] along ``dim``. Returns ``src`` with ``dim`` of ``size``.

    ``index`` (src.shape[dim],) whole numbers below ``size``; a group without members is 0.
    Source: torch_scatter.scatter_sum's documentation.
    """
    member = torch.arange(size, device=src.device)[:, None] == index[None, :]
    moved = src.double().movedim(dim, -1)
    # a product with 0 and 1 would spread NaN to all groups: selection instead
    parts = torch.where(member, moved[..., None, :], torch.zeros((), dtype=torch.float64, device=src.device))
    return parts.sum(dim=-1).movedim(-1, dim)
