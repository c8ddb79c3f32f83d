"""Float64 reference of convolution over three spatial dimensions."""

from __future__ import annotations

import torch


def conv3d(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None, *, stride: int = 1, padding: int = 0
) -> torch.Tensor:
    """Cross-correlation. Returns (N, O, Do, Ho, Wo).

    ``x`` (N, C, D, H, W), ``weight`` (O, C, kd, kh, kw), ``bias`` (O,). Zeros around x. Source: as conv2d.
    """
    x, w = torch.nn.functional.pad(x.double(), (padding,) * 6), weight.double()
    windows = x
    for dim, size in enumerate(w.shape[2:], start=2):
        windows = windows.unfold(dim, size, stride)
    y = torch.einsum("ncdhwijk,ocijk->nodhw", windows, w)
    return y if bias is None else y + bias.double()[:, None, None, None]
