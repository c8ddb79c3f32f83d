"""Float64 reference of hard voxelisation of point clouds."""

from __future__ import annotations

import torch


def voxelize(
    points: torch.Tensor,
    *,
    size: tuple[float, float, float],
    low: tuple[float, float, float],
    high: tuple[float, float, float],
    per_voxel: int,
    voxels: int,
    order: str = "ZYX",
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Points gathered by the voxel they lie in, in the order they come. Returns (V, per_voxel, C), (V, 3), (V,).

    ``points`` (M, C), the first three columns x, y, z. Voxel i along x holds low + i size <= x < low + (i + 1) size;
    points beyond the range are dropped, so are those beyond ``per_voxel`` in a voxel and the voxels beyond
    ``voxels``. Empty places are 0. Coordinates int64 as ``order`` says ("ZYX": mmcv, "XYZ": mmdet3d), then the number
    of points. Source: Zhou and Tuzel, arXiv:1711.06396, section 2.1.1; mmcv's Voxelization.
    """
    x = points.double()
    cells = torch.floor((x[:, :3].detach() - x.new_tensor(low)) / x.new_tensor(size)).long()
    counts = [round((high[a] - low[a]) / size[a]) for a in range(3)]
    members: dict[tuple[int, ...], list[int]] = {}
    for number, cell in enumerate(cells.tolist()):
        if not all(0 <= cell[a] < counts[a] for a in range(3)):
            continue
        if tuple(cell) in members or len(members) < voxels:
            members.setdefault(tuple(cell), []).append(number)
    rows = [[*found[:per_voxel], *[len(x)] * (per_voxel - len(found))] for found in members.values()]
    index = torch.tensor(rows, dtype=torch.int64, device=x.device).reshape(-1, per_voxel)
    places = torch.tensor(list(members), dtype=torch.int64, device=x.device).reshape(-1, 3)
    number = torch.tensor(
        [min(len(found), per_voxel) for found in members.values()], dtype=torch.int64, device=x.device
    )
    return torch.cat([x, x.new_zeros(1, x.shape[1])])[index], places.flip(-1) if order == "ZYX" else places, number
