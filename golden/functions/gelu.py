"""Float64 reference of GELU, exact and in its tanh form."""

from __future__ import annotations

import math

import torch


def gelu(x: torch.Tensor, *, approximate: str = "none") -> torch.Tensor:
    """x Phi(x), or 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))). Returns the shape of ``x``.

    ``approximate``: "none" (erf) or "tanh". Phi(x) = erfc(-x / sqrt 2) / 2 keeps its digits far below zero.
    Source: Hendrycks and Gimpel, arXiv:1606.08415, section 2. Raises ValueError for another form.
    """
    x = x.double()
    if approximate == "none":
        return 0.5 * x * torch.erfc(x * -math.sqrt(0.5))
    if approximate != "tanh":
        raise ValueError(f"approximate is {approximate!r}, must be none or tanh")
    # 0.5 (1 + tanh a) = sigmoid(2 a), without the cancellation at a << 0
    return x * torch.sigmoid(2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))
