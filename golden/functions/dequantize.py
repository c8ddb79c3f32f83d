"""Float64 reference of turning quantised whole numbers back, in both conventions of the offset."""

from __future__ import annotations

import torch


def dequantize(
    q: torch.Tensor, scale: torch.Tensor, offset: torch.Tensor | None = None, *, group: int = 0, added: bool = False
) -> torch.Tensor:
    """(q - offset) * scale, or (q + offset) * scale where ``added``. Returns floating numbers, the shape of ``q``.

    ``q`` int8 (..., C); ``scale``, ``offset`` broadcast to it, or with ``group`` G are (..., C / G). PyTorch subtracts
    its zero point, npu_anti_quant adds its offset. Source: Jacob and others, arXiv:1712.05877, eq. 1.
    """
    steps = q.double()
    if offset is not None:
        shift = offset.double().repeat_interleave(group, dim=-1) if group else offset.double()
        steps = steps + shift if added else steps - shift
    return steps * (scale.double().repeat_interleave(group, dim=-1) if group else scale.double())
