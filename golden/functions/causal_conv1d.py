"""Float64 reference of the depthwise causal convolution of Mamba."""

from __future__ import annotations

import torch


def causal_conv1d(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None, *, activation: str = "none"
) -> torch.Tensor:
    """y[t] = sum over k of weight[k] x[t - K + 1 + k] + bias, zeros before the start. Returns (B, C, T), as ``x``.

    ``weight`` (C, K), ``bias`` (C,); ``activation``: "none" or "silu". Source: causal_conv1d's docstring; Gu and Dao,
    arXiv:2312.00752, section 3.4.
    """
    x, w, length = x.double(), weight.double(), x.shape[-1]
    padded = torch.nn.functional.pad(x, (w.shape[1] - 1, 0))
    y = sum((padded[..., k : k + length] * w[:, k, None] for k in range(w.shape[1])), torch.zeros_like(x))
    y = y if bias is None else y + bias.double()[:, None]
    return y * torch.sigmoid(y) if activation == "silu" else y
