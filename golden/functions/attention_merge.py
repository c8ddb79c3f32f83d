"""Float64 reference of merging two partial attention results, as ring and context-parallel attention do."""

from __future__ import annotations

import torch


def attention_merge(
    output: torch.Tensor, lse: torch.Tensor, other: torch.Tensor, other_lse: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention over both key sets from the results over each. Returns (B, S, N, D) and its logsumexp (B, N, S).

    ``output``, ``other`` (B, S, N, D); ``lse``, ``other_lse`` (B, N, S): log of the sum of exp(score) of each set;
    minus infinity where a set has no key. Source: Liu, Zaharia and Abbeel, arXiv:2310.01889, section 3.
    """
    output, other, lse, other_lse = output.double(), other.double(), lse.double(), other_lse.double()
    top = torch.maximum(lse, other_lse).detach()
    top = torch.where(torch.isinf(top), torch.zeros_like(top), top)
    one, two = torch.exp(lse - top), torch.exp(other_lse - top)
    total = one + two
    safe = torch.where(total > 0, total, torch.ones_like(total))
    share, rest = ((part / safe).transpose(1, 2)[..., None] for part in (one, two))
    return share * output + rest * other, torch.log(total) + top
