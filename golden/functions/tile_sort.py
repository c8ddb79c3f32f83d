"""Float64 reference of assigning Gaussians to image tiles and sorting them by depth."""

from __future__ import annotations

import torch


def tile_sort(
    places: torch.Tensor, radii: torch.Tensor, depths: torch.Tensor, *, width: int, height: int, tile: int = 16
) -> tuple[torch.Tensor, torch.Tensor]:
    """Numbers of the Gaussians tile after tile, nearest first, and where each tile begins. int64 (K,), (tiles + 1,).

    ``places`` (M, 2) pixels, ``radii`` (M,) whole numbers (0: not visible), ``depths`` (M,). A Gaussian is in every
    tile that the square place -+ radius touches: tiles floor((p - r) / tile) to ceil((p + r) / tile), the last left
    out, within the image. Tiles row by row; of equal depths the lower number comes first. Source: Kerbl and others,
    arXiv:2308.04079, appendix C; gsplat's isect_tiles.
    """
    columns, rows = -(-width // tile), -(-height // tile)
    members: list[list[int]] = [[] for _ in range(columns * rows)]
    low = torch.floor((places.double() - radii.double()[:, None]) / tile).long()
    high = torch.ceil((places.double() + radii.double()[:, None]) / tile).long()
    order = torch.argsort(depths.double(), stable=True).tolist()
    starts, stops, sizes = low.tolist(), high.tolist(), radii.tolist()
    for number in order:
        if sizes[number] <= 0:
            continue
        for row in range(max(starts[number][1], 0), min(stops[number][1], rows)):
            for column in range(max(starts[number][0], 0), min(stops[number][0], columns)):
                members[row * columns + column].append(number)
    offsets = [0]
    for found in members:
        offsets.append(offsets[-1] + len(found))
    flat = [number for found in members for number in found]
    return torch.tensor(flat, dtype=torch.int64, device=places.device), torch.tensor(offsets, device=places.device)
