"""Float64 reference of RoIAlign."""

from __future__ import annotations

import math

import torch


def roi_align(
    x: torch.Tensor,
    rois: torch.Tensor,
    *,
    size: tuple[int, int],
    scale: float = 1.0,
    samples: int = 0,
    aligned: bool = False,
) -> torch.Tensor:
    """Means of bilinear samples in each bin of each region. Returns (K, C, ph, pw).

    ``x`` (N, C, H, W); ``rois`` (K, 5): image, x1, y1, x2, y2, times ``scale``; ``aligned`` moves them by half a pixel
    and allows sizes below 1. ``samples`` each way in a bin, 0 is the size of a bin rounded up. A sample more than one
    pixel beyond the image is 0, nearer ones take the edge. Source: He and others, arXiv:1703.06870, section 3;
    torchvision.ops.roi_align's documentation.
    """
    rows = []
    shift = 0.5 if aligned else 0.0
    for roi in rois.double().detach():
        x1, y1, x2, y2 = (float(value) * scale - shift for value in roi[1:])
        sides = (y2 - y1, x2 - x1) if aligned else (max(y2 - y1, 1.0), max(x2 - x1, 1.0))
        weights = [
            _find_weights(start, side, bins, samples, length)
            for start, side, bins, length in zip((y1, x1), sides, size, x.shape[2:])
        ]
        rows.append(
            torch.einsum("ph,chw,qw->cpq", weights[0].to(x.device), x.double()[int(roi[0])], weights[1].to(x.device))
        )
    return torch.stack(rows) if rows else torch.zeros(0, x.shape[1], *size, dtype=torch.float64) + 0 * x.double().sum()


def _find_weights(start: float, side: float, bins: int, samples: int, length: int) -> torch.Tensor:
    """(bins, length): the share of each pixel of one axis in each bin."""
    weights = [[0.0] * length for _ in range(bins)]
    count = samples or math.ceil(side / bins)
    for index in range(bins):
        for step in range(count):
            place = start + (index + (step + 0.5) / count) * side / bins
            if place < -1 or place > length:
                continue
            place = min(max(place, 0.0), length - 1.0)
            low = min(int(place), length - 1)
            weights[index][low] += (1 - (place - low)) / max(count, 1)
            weights[index][min(low + 1, length - 1)] += (place - low) / max(count, 1)
    return torch.tensor(weights, dtype=torch.float64)
