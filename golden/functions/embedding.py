"""Float64 reference of an embedding and its gradient."""

from __future__ import annotations

import torch


def embedding(
    index: torch.Tensor, weight: torch.Tensor, *, padding: int | None = None, by_frequency: bool = False
) -> torch.Tensor:
    """Rows of ``weight`` (V, C) by ``index`` (...), whole numbers below V. Returns (..., C).

    Gradient: each row gets the sum over its uses, none where the index is ``padding``; ``by_frequency``: divided by the
    number of uses. Source: torch.nn.functional.embedding's documentation (padding_idx, scale_grad_by_freq).
    """
    table = weight.double()
    chosen = (torch.arange(table.shape[0], device=weight.device) == index[..., None]).double()
    share = torch.ones_like(chosen[..., :1])
    if padding is not None:
        share = torch.where((index == padding)[..., None], torch.zeros_like(share), share)
    if by_frequency:
        share = share / (index.flatten()[:, None] == index.flatten()).sum(dim=1).reshape(index.shape)[..., None]
    rows = table.detach()[index]
    return rows + (chosen * share) @ (table - table.detach())
