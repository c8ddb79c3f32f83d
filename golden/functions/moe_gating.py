"""Float64 reference of MoE routing: scores, the k best experts, their weights."""

from __future__ import annotations

import torch


def moe_gating(
    logits: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    k: int,
    groups: int = 1,
    best_groups: int = 1,
    scoring: str = "softmax",
    normalise: bool = False,
    factor: float = 1.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The k experts with the highest score and their scores. Returns weights (T, k) and experts (T, k), best first.

    ``logits`` (T, E); ``scoring``: "softmax" over E or "sigmoid". ``bias`` (E,) is added for the choice only
    (DeepSeek-V3). ``groups`` > 1: only experts in the ``best_groups`` groups with the largest score (the sum of the two
    best with a bias, else the best) can be chosen. ``normalise``: weights sum to 1; then times ``factor``. Of equal
    scores the lower expert comes first. Source: Shazeer and others, arXiv:1701.06538, eq. 3-5; DeepSeek-V3,
    arXiv:2412.19437, eq. 12-16; vLLM's grouped_topk.
    """
    x = logits.double()
    if scoring == "softmax":
        powers = torch.exp(x - x.detach().amax(dim=-1, keepdim=True))
        scores = powers / powers.sum(dim=-1, keepdim=True)
    else:
        scores = torch.sigmoid(x)
    choice = (scores if bias is None else scores + bias.double()).detach()
    if groups > 1:
        parts = choice.unflatten(-1, (groups, -1))
        merit = parts.amax(dim=-1) if bias is None else parts.sort(dim=-1, descending=True).values[..., :2].sum(dim=-1)
        best = torch.sort(merit, dim=-1, descending=True, stable=True).indices[:, :best_groups]
        open_ = torch.zeros_like(merit, dtype=torch.bool).scatter(1, best, True)
        choice = parts.masked_fill(~open_[..., None], -torch.inf).flatten(1)
    experts = torch.sort(choice, dim=-1, descending=True, stable=True).indices[:, :k]
    weights = scores.gather(1, experts)
    weights = weights / weights.sum(dim=-1, keepdim=True) if normalise else weights
    return weights * factor, experts
