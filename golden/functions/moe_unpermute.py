"""Float64 reference of bringing expert outputs back to their tokens."""

from __future__ import annotations

import torch


def moe_unpermute(
    rows: torch.Tensor, places: torch.Tensor, probs: torch.Tensor | None = None, *, k: int
) -> torch.Tensor:
    """Sum over the k copies of each token, weighted. Returns (T, H).

    ``rows`` (M, H) sorted by expert, ``places`` (T * k,): copy t * k + j stands at row places[t * k + j], a place >= M
    was dropped and counts nothing; ``probs`` (T, k), None is 1 each. Source: npu_moe_token_unpermute's documentation.
    """
    whole = torch.cat([rows.double(), rows.double().new_zeros(1, rows.shape[1])])
    copies = whole[places.clamp(max=rows.shape[0])].unflatten(0, (places.shape[0] // k, k))
    if probs is not None:
        copies = copies * probs.double()[..., None]
    return copies.sum(dim=1)
