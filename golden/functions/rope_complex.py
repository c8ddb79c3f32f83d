"""Float64 reference of rotary position embedding in LLaMA's complex form."""

from __future__ import annotations

import torch


def rope_complex(x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    """Multiply pair (x[2i], x[2i + 1]), as a complex number, by e^(i angle). Returns (B, S, N, D), the shape of ``x``.

    ``angles`` (S, D / 2). Source: Su and others, arXiv:2104.09864, eq. 34; LLaMA's apply_rotary_emb.
    """
    x, turn = x.double(), angles.double()[:, None, :]
    real, imaginary = x[..., 0::2], x[..., 1::2]
    cosine, sine = torch.cos(turn), torch.sin(turn)
    rotated = torch.stack([real * cosine - imaginary * sine, real * sine + imaginary * cosine], dim=-1)
    return rotated.flatten(-2)
