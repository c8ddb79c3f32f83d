"""Float64 reference of one step of LAMB for one tensor."""

from __future__ import annotations

import torch


def lamb(
    param: torch.Tensor,
    grad: torch.Tensor,
    first: torch.Tensor,
    second: torch.Tensor,
    *,
    step: int,
    lr: float = 1e-3,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-6,
    decay: float = 0.01,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The parameter and its moments after step number ``step`` (from 1). All of the shape of ``param``.

    u = mh / (sqrt(vh) + eps) + decay p; p - lr |p| / |u| u, the ratio 1 where either norm is 0. Source: You and others,
    arXiv:1904.00962, algorithm 2, with bias correction.
    """
    p, g = param.double(), grad.double()
    m = betas[0] * first.double() + (1 - betas[0]) * g
    v = betas[1] * second.double() + (1 - betas[1]) * g * g
    update = (m / (1 - betas[0] ** step)) / (torch.sqrt(v / (1 - betas[1] ** step)) + eps) + decay * p
    norm, size = p.square().sum().sqrt(), update.square().sum().sqrt()
    ratio = torch.where((norm != 0) & (size != 0), norm / size, torch.ones_like(norm))
    return p - lr * ratio * update, m, v
