"""Float64 reference of QuickGELU, x * sigmoid(1.702 x)."""

from __future__ import annotations

import torch


def quick_gelu(x: torch.Tensor) -> torch.Tensor:
    """x sigmoid(1.702 x). Returns the shape of ``x``. Source: Hendrycks and Gimpel, arXiv:1606.08415, section 2."""
    x = x.double()
    return x * torch.sigmoid(1.702 * x)
