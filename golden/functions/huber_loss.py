"""Float64 reference of the Huber loss."""

from __future__ import annotations

import torch


def huber_loss(x: torch.Tensor, target: torch.Tensor, *, delta: float = 1.0, reduction: str = "mean") -> torch.Tensor:
    """d^2 / 2 where |d| <= delta, else delta (|d| - delta / 2), d = x - target. Returns a number, or the shape
    ("none").

    Source: Huber (1964), eq. 2.9; torch.nn.HuberLoss.
    """
    size = (x.double() - target.double()).abs()
    loss = torch.where(size <= delta, 0.5 * size * size, delta * (size - 0.5 * delta))
    return {"none": loss, "sum": loss.sum(), "mean": loss.mean()}[reduction]
