"""Float64 reference of scatter_max: the largest member of each group and its place."""

from __future__ import annotations

import torch


def scatter_max(src: torch.Tensor, index: torch.Tensor, *, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The maximum over rows i with index[i] = g, element by element, and its row. Returns (size, C) and int64 (size,
    C).

    ``src`` (M, C), ``index`` (M,) whole numbers below ``size``. A group without members gives 0 and row M; of equal
    members the first is named and gets the gradient. Source: torch_scatter.scatter_max's documentation.
    """
    x = src.double()
    member = torch.arange(size, device=src.device)[:, None] == index[None, :]
    open_ = torch.where(member[..., None], x.detach()[None], torch.full((), -torch.inf, dtype=torch.float64))
    row = open_.argmax(dim=1) if x.shape[0] else torch.zeros(size, x.shape[1], dtype=torch.int64, device=src.device)
    empty = ~member.any(dim=1)[:, None]
    padded = torch.cat([x, x.new_zeros(1, x.shape[1])])
    row = torch.where(empty, torch.full_like(row, x.shape[0]), row)
    return padded.gather(0, row), row
