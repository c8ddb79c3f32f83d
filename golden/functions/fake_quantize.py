"""Float64 reference of fake quantisation: to the grid of whole steps and back, with a straight-through gradient."""

from __future__ import annotations

import torch


def fake_quantize(
    x: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor, *, low: int = -128, high: int = 127
) -> torch.Tensor:
    """(clamp(round(x / scale) + zero, low, high) - zero) * scale. Returns the shape of ``x``.

    ``scale``, ``zero`` broadcast to ``x`` (whole numbers in ``zero``). Gradient: 1 where the step lies within the
    range, 0 elsewhere. Source: Jacob and others, arXiv:1712.05877, eq. 12; torch.fake_quantize_per_tensor_affine.
    """
    x, scale, zero = x.double(), scale.double(), zero.double()
    steps = torch.round(x.detach() / scale) + zero
    inside = (steps >= low) & (steps <= high)
    value = (steps.clamp(low, high) - zero) * scale
    return value + (x - x.detach()) * inside
