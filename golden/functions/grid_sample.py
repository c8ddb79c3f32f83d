"""Float64 reference of sampling images at given places."""

from __future__ import annotations

import torch


def grid_sample(
    x: torch.Tensor,
    grid: torch.Tensor,
    *,
    mode: str = "bilinear",
    padding: str = "zeros",
    align_corners: bool = False,
) -> torch.Tensor:
    """Values of ``x`` (N, C, H, W) at ``grid`` (N, Ho, Wo, 2) = (x, y) in [-1, 1]. Returns (N, C, Ho, Wo).

    ``align_corners``: -1 and 1 are the centres of the corner pixels, else their outer edges. ``mode``: "bilinear" or
    "nearest" (halves to even). ``padding``: beyond the image "zeros", the "border" value, or the "reflection" at its
    edge. Source: Jaderberg and others, arXiv:1506.02025, eq. 5; torch.nn.functional.grid_sample's documentation.
    """
    x, grid = x.double(), grid.double()
    places = [_place(grid[..., a], x.shape[3 - a], padding, align_corners) for a in (0, 1)]
    if mode == "nearest":
        return _pick(x, torch.round(places[1].detach()).long(), torch.round(places[0].detach()).long())
    low = [torch.floor(place.detach()).long() for place in places]
    (fx, fy), (left, top) = (place - edge for place, edge in zip(places, low)), low
    upper = (1 - fx)[:, None] * _pick(x, top, left) + fx[:, None] * _pick(x, top, left + 1)
    lower = (1 - fx)[:, None] * _pick(x, top + 1, left) + fx[:, None] * _pick(x, top + 1, left + 1)
    return (1 - fy)[:, None] * upper + fy[:, None] * lower


def _place(g: torch.Tensor, size: int, padding: str, align_corners: bool) -> torch.Tensor:
    """From [-1, 1] to pixels, brought into the image where the padding says so."""
    place = (g + 1) / 2 * (size - 1) if align_corners else ((g + 1) * size - 1) / 2
    if padding == "reflection":
        low, span = (0.0, size - 1.0) if align_corners else (-0.5, float(size))
        off = (place - low).abs()
        turns = torch.floor(off.detach() / span) if span else torch.zeros_like(off)
        rest = off - turns * span
        place = (torch.where(turns % 2 == 0, rest, span - rest) if span else 0 * off) + low
    return place.clamp(0, size - 1) if padding != "zeros" else place


def _pick(x: torch.Tensor, row: torch.Tensor, column: torch.Tensor) -> torch.Tensor:
    """Pixels (N, C, Ho, Wo) at whole places, 0 beyond the image."""
    height, width = x.shape[2:]
    inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
    index = (row.clamp(0, height - 1) * width + column.clamp(0, width - 1)).flatten(1)
    found = x.flatten(2).gather(2, index[:, None].expand(-1, x.shape[1], -1)).unflatten(2, row.shape[1:])
    return torch.where(inside[:, None], found, torch.zeros((), dtype=x.dtype, device=x.device))
