"""Float64 reference of transposed convolution over two spatial dimensions."""

from __future__ import annotations

import torch


def conv_transpose2d(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    stride: int = 1,
    padding: int = 0,
    output_padding: int = 0,
    dilation: int = 1,
    groups: int = 1,
) -> torch.Tensor:
    """Each pixel spreads its kernel. Returns (N, O, Ho, Wo), Ho = (H - 1) stride - 2 padding + dilation (kh - 1)
    + output_padding + 1.

    ``x`` (N, C, H, W), ``weight`` (C, O / groups, kh, kw), ``bias`` (O,). Source: Dumoulin and Visin, arXiv:1603.07285,
    section 4; torch.nn.ConvTranspose2d's documentation.
    """
    x, w = x.double(), weight.double()
    x = x.unflatten(1, (groups, x.shape[1] // groups))
    w = w.unflatten(0, (groups, w.shape[0] // groups))
    height, width = x.shape[3:]
    rows = (height - 1) * stride + dilation * (w.shape[3] - 1) + 1 + output_padding
    columns = (width - 1) * stride + dilation * (w.shape[4] - 1) + 1 + output_padding
    pieces = []
    for i in range(w.shape[3]):
        for j in range(w.shape[4]):
            part = torch.einsum("ngchw,gco->ngohw", x, w[..., i, j])
            wide = torch.zeros(*part.shape[:4], (width - 1) * stride + 1, dtype=part.dtype, device=x.device)
            wide = wide.index_copy(4, torch.arange(width, device=x.device) * stride, part)
            tall = torch.zeros(
                *wide.shape[:3], (height - 1) * stride + 1, wide.shape[4], dtype=part.dtype, device=x.device
            )
            tall = tall.index_copy(3, torch.arange(height, device=x.device) * stride, wide)
            left, top = j * dilation, i * dilation
            sides = (left, columns - left - tall.shape[4], top, rows - top - tall.shape[3])
            pieces.append(torch.nn.functional.pad(tall, sides))
    y = torch.stack(pieces).sum(dim=0).flatten(1, 2)
    y = y[:, :, padding : rows - padding, padding : columns - padding]
    return y if bias is None else y + bias.double()[:, None, None]
