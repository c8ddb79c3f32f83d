"""Float64 reference of one step of Adam and AdamW."""

from __future__ import annotations

import torch


def adamw(
    param: torch.Tensor,
    grad: torch.Tensor,
    first: torch.Tensor,
    second: torch.Tensor,
    *,
    step: int,
    lr: float = 1e-3,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    decay: float = 0.0,
    decoupled: bool = True,
    correction: bool = True,
    maximise: bool = False,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The parameter and its moments after step number ``step`` (from 1). All of the shape of ``param``.

    m = b1 m + (1 - b1) g, v = b2 v + (1 - b2) g^2, p = p - lr mh / (sqrt(vh) + eps), mh = m / (1 - b1^step) and vh
    likewise, or m and v without ``correction`` (apex bias_correction=False). ``decay`` w: p (1 - lr w) first where
    ``decoupled`` (AdamW), else g + w p (Adam with L2). Source: Kingma and Ba, arXiv:1412.6980, algorithm 1;
    Loshchilov and Hutter, arXiv:1711.05101, algorithm 2.
    """
    p, g, m, v = param.double(), grad.double(), first.double(), second.double()
    g = -g if maximise else g
    if decoupled:
        p = p - lr * decay * p
    else:
        g = g + decay * p
    m = betas[0] * m + (1 - betas[0]) * g
    v = betas[1] * v + (1 - betas[1]) * g * g
    scale_m = 1 - betas[0] ** step if correction else 1.0
    scale_v = 1 - betas[1] ** step if correction else 1.0
    return p - lr * (m / scale_m) / (torch.sqrt(v / scale_v) + eps), m, v
