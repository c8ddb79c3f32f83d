"""Float64 reference of grouped matrix multiplication: each group of rows with a weight of its own."""

from __future__ import annotations

import torch


def grouped_matmul(
    x: torch.Tensor, weight: torch.Tensor, counts: torch.Tensor, *, transposed: bool = False, cumulative: bool = False
) -> torch.Tensor:
    """Rows of expert e times its weight. Returns (T, N).

    ``x`` (T, K), rows sorted by expert; ``weight`` (E, K, N), or (E, N, K) where ``transposed``; ``counts`` (E,) rows
    of each expert, or where ``cumulative`` the end of each. Source: Gale and others, arXiv:2211.15841, section 3
    (MegaBlocks).
    """
    ends = counts if cumulative else torch.cumsum(counts, dim=0)
    expert = torch.bucketize(torch.arange(x.shape[0], device=x.device), ends, right=True)
    chosen = weight.double()[expert]
    chosen = chosen.transpose(-1, -2) if transposed else chosen
    return torch.einsum("tk,tkn->tn", x.double(), chosen)
