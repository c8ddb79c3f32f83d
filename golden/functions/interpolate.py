"""Float64 reference of resizing images."""

from __future__ import annotations

import torch


def interpolate(
    x: torch.Tensor, *, size: tuple[int, int], mode: str = "bilinear", align_corners: bool = False
) -> torch.Tensor:
    """``x`` (N, C, H, W) resized to ``size`` (Ho, Wo). Returns (N, C, Ho, Wo).

    Output pixel i lies at (i + 1/2) H / Ho - 1/2, or with ``align_corners`` at i (H - 1) / (Ho - 1). ``mode``:
    "nearest" (floor of i H / Ho), "bilinear", "bicubic" (Keys, a = -3/4) or "area" (mean of the pixels it covers).
    Places beyond the edge take the edge. Source: Keys (1981), eq. 4; torch.nn.functional.interpolate's documentation.
    """
    y = x.double()
    for dim, new in ((2, size[0]), (3, size[1])):
        weights = _find_weights(y.shape[dim], new, mode, align_corners)
        y = torch.einsum("ij,ncjk->ncik" if dim == 2 else "ij,nckj->ncki", weights.to(y.dtype), y)
    return y


def _find_weights(old: int, new: int, mode: str, align_corners: bool) -> torch.Tensor:
    """(new, old): the share of each old pixel in each new one."""
    weights = [[0.0] * old for _ in range(new)]
    for i in range(new):
        place = i * (old - 1) / max(new - 1, 1) if align_corners else (i + 0.5) * old / new - 0.5
        if mode == "nearest":
            weights[i][i * old // new] = 1
        elif mode == "area":
            first, last = i * old // new, -(-(i + 1) * old // new)
            weights[i][first:last] = [1 / (last - first)] * (last - first)
        elif mode == "bilinear":
            place = max(place, 0.0)
            low = int(place)
            weights[i][low] += 1 - (place - low)
            weights[i][min(low + 1, old - 1)] += place - low
        else:
            low = int(place // 1)
            for j in range(low - 1, low + 3):
                weights[i][min(max(j, 0), old - 1)] += _find_cubic(abs(place - j))
    return torch.tensor(weights, dtype=torch.float64)


def _find_cubic(t: float, a: float = -0.75) -> float:
    """Keys' kernel at distance t."""
    if t <= 1:
        return (a + 2) * t**3 - (a + 3) * t**2 + 1
    return a * t**3 - 5 * a * t**2 + 8 * a * t - 4 * a if t < 2 else 0.0
