"""Float64 reference of multimodal rotary embedding (Qwen2-VL)."""

from __future__ import annotations

import torch


def mrope(
    x: torch.Tensor, positions: torch.Tensor, *, sections: tuple[int, ...], base: float = 10000.0
) -> torch.Tensor:
    """Rotate half-split pairs, the first ``sections[0]`` of them by the time position, the next by height, then width.

    ``x`` (T, N, D), ``positions`` (3, T) whole numbers, sections sum to D / 2. Pair i, (x[i], x[i + D/2]), turns by
    positions[section of i] * base^(-2i/D). Returns the shape of ``x``. Source: Wang and others, arXiv:2409.12191,
    section 2.1; transformers' apply_multimodal_rotary_pos_emb.
    """
    x, half = x.double(), x.shape[-1] // 2
    axis = torch.tensor([a for a, size in enumerate(sections) for _ in range(size)], device=x.device)
    rates = base ** -(torch.arange(half, dtype=torch.float64, device=x.device) / half)
    turn = (positions[axis].double() * rates[:, None]).T[:, None, :]
    first, second = x[..., :half], x[..., half:]
    cosine, sine = torch.cos(turn), torch.sin(turn)
    return torch.cat([first * cosine - second * sine, second * cosine + first * sine], dim=-1)
