"""Float64 reference of symmetric quantisation with a scale for each token, found on the fly."""

from __future__ import annotations

import torch


def dynamic_quantize(
    x: torch.Tensor, smooth: torch.Tensor | None = None, *, bits: int = 8
) -> tuple[torch.Tensor, torch.Tensor]:
    """round(y / s) and s = max|y| / (2^(bits-1) - 1) over the last dimension, y = x * smooth. Returns int8 (..., C),
    (...).

    ``smooth`` (C,): SmoothQuant's factors. A row of zeros gives zeros and a scale of 0. Halves to even.
    Source: npu_dynamic_quant's documentation; Xiao and others, arXiv:2211.10438, eq. 2.
    """
    y = x.double() if smooth is None else x.double() * smooth.double()
    top = 2 ** (bits - 1) - 1
    scale = y.abs().amax(dim=-1) / top
    safe = torch.where(scale > 0, scale, torch.ones_like(scale))
    return torch.round(y / safe[..., None]).clamp(-top - 1, top).to(torch.int8), scale
