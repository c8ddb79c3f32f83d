"""Float64 reference of Megatron's fused bias and GELU."""

from __future__ import annotations

import torch


def bias_gelu(x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """0.5 y (1 + tanh(0.79788456 y (1 + 0.044715 y^2))), y = x + bias. Returns the shape of ``x`` (..., C); bias (C,).

    The constant is Megatron-LM's rounding of sqrt(2 / pi). Source: Megatron-LM fusions/fused_bias_gelu.py.
    """
    y = x.double() + bias.double()
    return 0.5 * y * (1 + torch.tanh(0.79788456 * y * (1 + 0.044715 * y * y)))
