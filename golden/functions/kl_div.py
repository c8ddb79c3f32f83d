"""Float64 reference of the Kullback-Leibler divergence loss."""

from __future__ import annotations

import torch


def kl_div(
    log_q: torch.Tensor, p: torch.Tensor, *, log_target: bool = False, reduction: str = "batchmean"
) -> torch.Tensor:
    """p (log p - log q), summed and divided by the batch ("batchmean"), summed, averaged, or not ("none").

    ``log_q`` log probabilities, ``p`` probabilities, or their logarithms where ``log_target``, both (N, ...); p = 0
    gives 0. Returns a number, or (N, ...). Source: Kullback and Leibler (1951); torch.nn.KLDivLoss.
    """
    log_q, p = log_q.double(), p.double()
    terms = torch.exp(p) * (p - log_q) if log_target else torch.where(p > 0, p * (torch.log(p) - log_q), 0 * log_q)
    if reduction == "none":
        return terms
    return terms.mean() if reduction == "mean" else terms.sum() / (p.shape[0] if reduction == "batchmean" else 1)
