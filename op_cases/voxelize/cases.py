"""Cases for hard voxelisation. Keywords: ``points`` (M, C), ``size``, ``low``, ``high``, ``per_voxel``, ``voxels``,
``order``. Results: points by voxel, coordinates, numbers of points (int64)."""

from __future__ import annotations

import math

import torch

from precision_align.library.drawing import Drawn, Family, fixed, levels, uniform
from precision_align.library.formulas import Formula

FORMULA = Formula("voxelize")
Tensor = torch.Tensor


def cloud(count: int, channels: int = 4) -> Drawn:
    return uniform(count, channels, low=-0.5, high=4.5)


family = Family(
    points=cloud(60), size=(1.0, 2.0, 0.5), low=(0.0, 0.0, 0.0), high=(4.0, 4.0, 4.0), per_voxel=3, voxels=40,
    dtypes=("float32",), wrt=("points",),
)  # fmt: skip


def call_torch(
    points: Tensor, *, size: tuple[float, ...], low: tuple[float, ...], high: tuple[float, ...], per_voxel: int,
    voxels: int, order: str = "ZYX",
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """One key a voxel, unique, and the rank of a point among those of its key; no loop over points."""
    spans = [round((high[a] - low[a]) / size[a]) for a in range(3)]
    steps = torch.stack([torch.floor((points.detach()[:, a] - low[a]) / size[a]) for a in range(3)], 1).long()
    bound = torch.tensor(spans, device=points.device)
    valid = torch.nonzero(((steps >= 0) & (steps < bound)).all(dim=1)).flatten()
    cells = steps[valid]
    key = (cells[:, 0] * spans[1] + cells[:, 1]) * spans[2] + cells[:, 2]
    same = key[:, None] == key
    rank = torch.tril(same, -1).sum(dim=1)
    first = torch.nonzero(rank == 0).flatten()[:voxels]
    voxel = torch.full_like(key, -1)
    for number, place in enumerate(first.tolist()):
        voxel[key == key[place]] = number
    kept = (voxel >= 0) & (rank < per_voxel)
    found = points.new_zeros(len(first), per_voxel, points.shape[1])
    found = found.index_put((voxel[kept], rank[kept]), points[valid[kept]])
    number = torch.zeros(len(first), dtype=torch.int64, device=points.device).index_add(
        0, voxel[kept], torch.ones_like(voxel[kept])
    )
    places = cells[first]
    return found, places[:, [2, 1, 0]] if order == "ZYX" else places, number


CASES = [
    family("plain", "points beyond the range kept", "basic"),
    family("xyz", "coordinates in the other order", "order", order="XYZ"),
    family("full-voxels", "points beyond per_voxel", "limit", size=(2.0, 2.0, 2.0)),
    family(
        "few-voxels",
        "voxels beyond the limit, but points of earlier ones still count",
        "limit",
        voxels=5,
        size=(2.0, 2.0, 1.0),
    ),
    family("one-point-each", "the first point of each", "limit", per_voxel=1, size=(2.0, 2.0, 2.0)),
    family(
        "on-the-border",
        "a point on the border belongs to the upper voxel",
        "ties",
        points=levels(60, 4, low=-1, high=9, step=0.5),
        size=(1.0, 1.0, 1.0),
        exact=True,
        wrt=(),
    ),
    family(
        "at-the-ends",
        "low is inside, high is not",
        "edge",
        points=fixed([[0.0, 0, 0, 1], [4.0, 1, 1, 2], [3.9, 3.9, 3.9, 3], [1.0, 4.0, 1, 4], [0.0, 0, 4.0, 5]]),
        exact=True,
        wrt=(),
    ),
    family(
        "negative-range",
        "low below zero: floor, not truncation",
        "sign",
        points=uniform(60, 4, low=-3.0, high=3.0),
        low=(-2.0, -2.0, -2.0),
        high=(2.0, 2.0, 2.0),
    ),
    family("all-beyond", "no voxel at all", "empty-rows", points=cloud(9).then(lambda p: p + 50.0), wrt=()),
    family("three-columns", "no further column", "shape", points=cloud(60, 3)),
    family("points-130", "beyond two tiles of 64", "tile", points=cloud(130)),
    family("one-point", "a single point", "size-1", points=fixed([[1.5, 1.5, 1.5, 9.0]])),
    family("empty", "no point", "empty", points=cloud(0), wrt=()),
    family(
        "nan-column",
        "NaN in a further column travels along",
        "nonfinite",
        wrt=(),
        points=cloud(60).at((slice(None, None, 2), 3), math.nan),
    ),
    *family.layouts("points"),
]

OPERATOR = FORMULA.describe(
    CASES,
    {"torch": call_torch},
    {
        "the other order": FORMULA.edit('if order == "ZYX"', 'if order != "ZYX"'),
        "ZYX always": FORMULA.set(order="ZYX"),
        "truncation": FORMULA.edit("torch.floor(", "torch.trunc("),
        "rounding": FORMULA.edit("torch.floor(", "torch.round("),
        "low ignored": FORMULA.edit("(x[:, :3].detach() - x.new_tensor(low))", "x[:, :3].detach()"),
        "high included": FORMULA.edit("0 <= cell[a] < counts[a]", "0 <= cell[a] <= counts[a]"),
        "low excluded": FORMULA.edit("0 <= cell[a] < counts[a]", "0 < cell[a] < counts[a]"),
        "range ignored": FORMULA.edit("if not all(0 <= cell[a] < counts[a] for a in range(3)):", "if False:"),
        "sizes in the other order": FORMULA.edit("/ x.new_tensor(size)", "/ x.new_tensor(size).flip(0)"),
        "last points kept": FORMULA.edit("[*found[:per_voxel],", "[*found[-per_voxel:],"),
        "one point too few": FORMULA.edit("[*found[:per_voxel], *[len(x)] * (per_voxel - len(found))]", "[*found[: per_voxel - 1], *[len(x)] * (per_voxel - len(found[: per_voxel - 1]))]"),
        "numbers not limited": FORMULA.edit("min(len(found), per_voxel)", "len(found)"),
        "one voxel too many": FORMULA.edit("len(members) < voxels", "len(members) <= voxels"),
        "stops at the last voxel": FORMULA.edit("if tuple(cell) in members or len(members) < voxels:", "if len(members) >= voxels:\n            break\n        if True:"),
        "voxels sorted": FORMULA.edit("rows = [[", "members = dict(sorted(members.items()))\n    rows = [["),
        "empty places repeat the last point": FORMULA.edit("[len(x)] * (per_voxel", "[max(len(x) - 1, 0)] * (per_voxel"),
        "cells in float16": FORMULA.edit("x[:, :3].detach()", "x[:, :3].detach().half().double()"),
        "gradient of the first point only": FORMULA.edit("torch.cat([x, x.new_zeros(1, x.shape[1])])", "torch.cat([x[:1], x[1:].detach(), x.new_zeros(1, x.shape[1])])"),
        "NaN is 0": FORMULA.after(lambda y: (y[0].nan_to_num(), *y[1:])),
        "points beyond a tile of 64 lost": FORMULA.edit("enumerate(cells.tolist())", "enumerate(cells.tolist()[:64])"),
    },
    rule="exact",
)  # fmt: skip
