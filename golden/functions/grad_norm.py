"""Float64 reference of clipping gradients by their global norm."""

from __future__ import annotations

import math

import torch


def grad_norm(
    first: torch.Tensor, second: torch.Tensor, *, maximum: float = 1.0, power: float = 2.0, eps: float = 1e-6
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Both gradients times min(1, maximum / (norm + eps)), and the norm of both together (a number).

    norm = (sum |g|^power)^(1/power), the largest |g| for infinity. Source: Pascanu and others, arXiv:1211.5063,
    algorithm 1; torch.nn.utils.clip_grad_norm_.
    """
    parts = torch.cat([first.double().flatten(), second.double().flatten()]).abs()
    norm = parts.amax() if math.isinf(power) else parts.pow(power).sum().pow(1.0 / power)
    factor = torch.clamp(maximum / (norm + eps), max=1.0)
    return first.double() * factor, second.double() * factor, norm
