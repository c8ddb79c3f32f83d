"""Float64 reference of NF4 quantisation in blocks, and of taking it back."""

from __future__ import annotations

import torch

# Quantiles of the normal distribution with an exact zero, scaled to [-1, 1]: Dettmers and others, arXiv:2305.14314,
# appendix E.
CODE = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
)  # fmt: skip


def nf4_quantize(x: torch.Tensor, *, block: int = 64) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Index of the nearest code of x / max|x| in its block, the maxima, and the values they stand for.

    ``x`` (C,), C a multiple of ``block``. Returns int64 (C,), (C / block,), (C,). A block of zeros gives the code of 0.
    Source: Dettmers and others, arXiv:2305.14314 (QLoRA), section 3.
    """
    parts = x.double().unflatten(0, (x.shape[0] // block, block))
    top = parts.abs().amax(dim=-1)
    scaled = parts / torch.where(top > 0, top, torch.ones_like(top))[:, None]
    code = torch.tensor(CODE, dtype=torch.float64, device=x.device)
    index = (scaled[..., None] - code).abs().argmin(dim=-1)
    return index.flatten(), top, (code[index] * top[:, None]).flatten()
