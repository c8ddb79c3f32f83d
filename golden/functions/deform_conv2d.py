"""Float64 reference of deformable convolution, with or without modulation."""

from __future__ import annotations

import torch


def deform_conv2d(
    x: torch.Tensor,
    offset: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    mask: torch.Tensor | None = None,
    *,
    stride: int = 1,
    padding: int = 0,
    dilation: int = 1,
) -> torch.Tensor:
    """Convolution whose kernel places are moved by ``offset``. Returns (N, O, Ho, Wo).

    ``x`` (N, C, H, W); ``weight`` (O, C, kh, kw); ``offset`` (N, 2 G kh kw, Ho, Wo): for each of G groups of channels
    and each kernel place the pair (dy, dx); ``mask`` (N, G kh kw, Ho, Wo) multiplies (DCNv2). Values by bilinear
    interpolation, 0 beyond the image. Source: Dai and others, arXiv:1703.06211, eq. 2-4; Zhu and others,
    arXiv:1811.11168, eq. 1; torchvision.ops.deform_conv2d's documentation.
    """
    x, offset, w = x.double(), offset.double(), weight.double()
    batch, channels, height, width = x.shape
    kh, kw = w.shape[2:]
    rows, columns = offset.shape[2:]
    moves = offset.reshape(batch, -1, kh, kw, 2, rows, columns)
    groups = moves.shape[1]
    base_y = torch.arange(rows, device=x.device)[:, None] * stride - padding
    base_x = torch.arange(columns, device=x.device)[None, :] * stride - padding
    y = torch.arange(kh, device=x.device)[:, None, None, None] * dilation + base_y + moves[:, :, :, :, 0]
    z = torch.arange(kw, device=x.device)[:, None, None] * dilation + base_x + moves[:, :, :, :, 1]
    flat = x.reshape(batch, groups, channels // groups, height * width)
    total = torch.zeros((), dtype=torch.float64, device=x.device)
    for dy in (0, 1):
        for dx in (0, 1):
            row, column = torch.floor(y.detach()).long() + dy, torch.floor(z.detach()).long() + dx
            inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
            share = (1 - (y - row).abs()) * (1 - (z - column).abs()) * inside
            index = row.clamp(0, height - 1) * width + column.clamp(0, width - 1)
            found = flat.gather(3, index.flatten(2)[:, :, None].expand(-1, -1, channels // groups, -1))
            total = total + found.unflatten(3, index.shape[2:]) * share[:, :, None]
    if mask is not None:
        total = total * mask.double().reshape(batch, groups, 1, kh, kw, rows, columns)
    result = torch.einsum("ncijhw,ocij->nohw", total.flatten(1, 2), w)
    return result if bias is None else result + bias.double()[:, None, None]
