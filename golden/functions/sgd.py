"""Float64 reference of one step of stochastic gradient descent with momentum."""

from __future__ import annotations

import torch


def sgd(
    param: torch.Tensor,
    grad: torch.Tensor,
    buffer: torch.Tensor | None = None,
    *,
    lr: float,
    momentum: float = 0.0,
    dampening: float = 0.0,
    nesterov: bool = False,
    decay: float = 0.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The parameter and the momentum buffer after one step. Both of the shape of ``param``.

    g = grad + decay p; b = momentum b + (1 - dampening) g, or g in the first step (no ``buffer``); p - lr (g +
    momentum b where ``nesterov``, else b). Without momentum the buffer is g. Source: Sutskever and others (2013), eq.
    1-4, in PyTorch's form, where lr multiplies the buffer.
    """
    p = param.double()
    g = grad.double() + decay * p
    b = g if buffer is None else momentum * buffer.double() + (1 - dampening) * g
    if momentum == 0:
        return p - lr * g, g
    return p - lr * (g + momentum * b if nesterov else b), b
