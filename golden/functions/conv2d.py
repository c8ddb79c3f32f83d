"""Float64 reference of convolution over two spatial dimensions."""

from __future__ import annotations

import torch


def conv2d(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    stride: int = 1,
    padding: int = 0,
    dilation: int = 1,
    groups: int = 1,
) -> torch.Tensor:
    """Cross-correlation. Returns (N, O, Ho, Wo).

    ``x`` (N, C, H, W), ``weight`` (O, C / groups, kh, kw), ``bias`` (O,). Zeros around x; group g of the outputs sees
    group g of the channels. Source: Dumoulin and Visin, arXiv:1603.07285, section 2.4 (sizes); the sum over kernel
    places.
    """
    x, w = torch.nn.functional.pad(x.double(), (padding,) * 4), weight.double()
    height = (x.shape[2] - dilation * (w.shape[2] - 1) - 1) // stride + 1
    width = (x.shape[3] - dilation * (w.shape[3] - 1) - 1) // stride + 1
    x = x.unflatten(1, (groups, x.shape[1] // groups))
    w = w.unflatten(0, (groups, w.shape[0] // groups))
    y = torch.zeros((), dtype=torch.float64, device=x.device)
    for i in range(w.shape[3]):
        for j in range(w.shape[4]):
            top, left = i * dilation, j * dilation
            seen = x[..., top : top + stride * height : stride, left : left + stride * width : stride]
            y = y + torch.einsum("ngchw,goc->ngohw", seen[..., :height, :width], w[..., i, j])
    y = y.flatten(1, 2)
    return y if bias is None else y + bias.double()[:, None, None]
