"""Float64 reference of max pooling with the places of the maxima."""

from __future__ import annotations

import torch


def max_pool2d(
    x: torch.Tensor, *, size: int, stride: int = 0, padding: int = 0, dilation: int = 1
) -> tuple[torch.Tensor, torch.Tensor]:
    """The largest value of each window and its place h * W + w in ``x``. Returns (N, C, Ho, Wo) and int64 alike.

    ``x`` (N, C, H, W), surrounded by minus infinity; ``stride`` 0 is ``size``; of equal values the first is named; NaN
    wins. Source: torch.nn.MaxPool2d's documentation.
    """
    stride, height, width = stride or size, x.shape[2], x.shape[3]
    rows, columns = (torch.arange(n + 2 * padding, device=x.device) - padding for n in (height, width))
    rows, columns = (part.unfold(0, dilation * (size - 1) + 1, stride)[:, ::dilation] for part in (rows, columns))
    inside = ((rows >= 0) & (rows < height))[:, None, :, None] & ((columns >= 0) & (columns < width))[None, :, None, :]
    place = rows.clamp(0, height - 1)[:, None, :, None] * width + columns.clamp(0, width - 1)[None, :, None, :]
    place, inside = place.flatten(2), inside.flatten(2)
    windows = x.double().flatten(2)[..., place.flatten()].unflatten(-1, place.shape).masked_fill(~inside, -torch.inf)
    best = torch.where(torch.isnan(windows), torch.inf, windows).detach().argmax(dim=-1)
    index = place.expand(windows.shape).gather(-1, best[..., None])[..., 0]
    return windows.gather(-1, best[..., None])[..., 0], index
