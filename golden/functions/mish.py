"""Float64 reference of Mish."""

from __future__ import annotations

import torch


def mish(x: torch.Tensor) -> torch.Tensor:
    """x tanh(log(1 + e^x)). Returns the shape of ``x``. Source: Misra, arXiv:1908.08681, eq. 1.

    With n = e^-|x|, tanh(log(1 + e^x)) is (1 + 2n) / (1 + 2n + 2n^2) for x >= 0, (n^2 + 2n) / (n^2 + 2n + 2) below:
    no overflow and no cancellation.
    """
    x = x.double()
    n = torch.exp(-x.abs())
    above, below = (1 + 2 * n) / (1 + 2 * n + 2 * n * n), (n * n + 2 * n) / (n * n + 2 * n + 2)
    return x * torch.where(x >= 0, above, below)
