"""Float64 reference of the sigmoid focal loss."""

from __future__ import annotations

import torch


def sigmoid_focal_loss(
    x: torch.Tensor, target: torch.Tensor, *, alpha: float = 0.25, gamma: float = 2.0
) -> torch.Tensor:
    """-a (1 - p)^gamma log(p), p the probability of the right answer. Returns the shape of ``x``, no reduction.

    ``x`` logits, ``target`` 0 or 1 (floating); p = sigmoid(x) for 1 and sigmoid(-x) for 0, a = alpha and 1 - alpha;
    alpha < 0 is no weighting. Source: Lin and others, arXiv:1708.02002, eq. 5; torchvision.ops.sigmoid_focal_loss.
    """
    x, target = x.double(), target.double()
    right = x * (2 * target - 1)
    log_p = torch.clamp(right, max=0.0) - torch.log1p(torch.exp(-right.abs()))
    loss = -torch.exp(gamma * (torch.clamp(-right, max=0.0) - torch.log1p(torch.exp(-right.abs())))) * log_p
    return loss * (alpha * target + (1 - alpha) * (1 - target)) if alpha >= 0 else loss
