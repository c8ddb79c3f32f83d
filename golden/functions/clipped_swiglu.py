"""Float64 reference of the clipped SwiGLU of GPT-OSS."""

from __future__ import annotations

import torch


def clipped_swiglu(
    x: torch.Tensor, *, alpha: float = 1.702, limit: float = 7.0, bias: float = 1.0, interleaved: bool = True
) -> torch.Tensor:
    """min(a, limit) sigmoid(alpha min(a, limit)) (clamp(b, -limit, limit) + bias). Returns (..., C / 2).

    ``x`` (..., C): a and b are its even and odd elements, or its halves where not ``interleaved``.
    Source: npu_clipped_swiglu's documentation; SwigluOAI of the GPT-OSS model code.
    """
    x = x.double()
    a, b = (x[..., 0::2], x[..., 1::2]) if interleaved else torch.chunk(x, 2, dim=-1)
    a, b = a.clamp(max=limit), b.clamp(min=-limit, max=limit)
    return a * torch.sigmoid(alpha * a) * (b + bias)
