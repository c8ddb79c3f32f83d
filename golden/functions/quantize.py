"""Float64 reference of affine quantisation to whole numbers, with any granularity of scale."""

from __future__ import annotations

import torch


def quantize(
    x: torch.Tensor,
    scale: torch.Tensor,
    zero: torch.Tensor | None = None,
    *,
    bits: int = 8,
    group: int = 0,
    divide: bool = True,
) -> torch.Tensor:
    """clamp(round(x / scale) + zero, -2^(bits-1), 2^(bits-1) - 1), halves to even. Returns int8, the shape of ``x``.

    ``scale`` broadcasts to ``x`` (one for all, (C,) by channel, (T, 1) by token), or with ``group`` G is (..., C / G),
    one for G neighbours; ``zero`` likewise, whole numbers. ``divide`` false: x * scale (npu_quantize's div_mode=False).
    Source: Jacob and others, arXiv:1712.05877, eq. 1; npu_quantize's documentation.
    """
    x, scale = x.double(), scale.double()
    offset = 0.0 if zero is None else zero.double()
    if group:
        scale = scale.repeat_interleave(group, dim=-1)
        offset = offset if zero is None else zero.double().repeat_interleave(group, dim=-1)
    steps = torch.round(x / scale if divide else x * scale) + offset
    return steps.clamp(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1).to(torch.int8)
