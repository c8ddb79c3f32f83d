"""Cases for tile assignment and depth sort. Keywords: ``places`` (M, 2), ``radii`` (M,), ``depths`` (M,), ``width``,
``height``, ``tile``. Results: numbers, offsets (int64)."""

from __future__ import annotations

from typing import Any

import torch

from precision_align.library.drawing import Family, fixed, levels, uniform, whole
from precision_align.library.formulas import Formula

FORMULA = Formula("tile_sort")
Tensor = torch.Tensor


def cloud(count: int, reach: float = 64.0, most: int = 12) -> dict[str, Any]:
    return {
        "places": uniform(count, 2, low=-8.0, high=reach + 8.0),
        "radii": whole(count, low=0, high=most),
        "depths": uniform(count, low=0.5, high=9.0),
    }


family = Family(width=64, height=48, dtypes=("float32",), **cloud(30))


def call_torch(
    places: Tensor, radii: Tensor, depths: Tensor, *, width: int, height: int, tile: int = 16
) -> tuple[Tensor, Tensor]:
    """A table of all tiles and Gaussians, a sort by depth that keeps the order, nonzero and cumsum."""
    columns, rows = -(-width // tile), -(-height // tile)
    order = torch.sort(depths, stable=True).indices
    p, r = places[order], radii[order, None].to(places.dtype)
    first, last = torch.div(p - r, tile).floor(), torch.div(p + r, tile).ceil()
    x, y = torch.arange(columns, device=places.device), torch.arange(rows, device=places.device)
    in_x = (first[:, 0] <= x[:, None]) & (x[:, None] < last[:, 0])
    in_y = (first[:, 1] <= y[:, None]) & (y[:, None] < last[:, 1])
    table = (in_y[:, None] & in_x[None]).flatten(0, 1) & (r[:, 0] > 0)
    return order[torch.nonzero(table)[:, 1]], torch.nn.functional.pad(torch.cumsum(table.sum(dim=1), 0), (1, 0))


CASES = [
    family("plain", "farthest first", "basic"),
    family("tile-8", "tiles of 16 always", "tile", tile=8),
    family("image-not-whole-tiles", "the last column of tiles is cut", "edge", width=70, height=33, tile=16),
    family("equal-depths", "of equal depths the lower number", "ties", depths=levels(30, low=1, high=3), exact=True),
    family(
        "on-tile-borders",
        "what touches a border from the left is not in the right tile",
        "ties",
        places=fixed([[8.0, 8.0], [16.0, 16.0], [24.0, 8.0], [32.0, 40.0]]),
        radii=fixed([8, 4, 8, 8]),
        depths=fixed([4.0, 3.0, 2.0, 1.0]),
        exact=True,
    ),
    family("not-visible", "a radius of 0 is in no tile", "rows", radii=whole(30, low=0, high=2)),
    family("beyond-the-image", "places beyond the image", "edge", places=uniform(30, 2, low=-60.0, high=130.0)),
    family(
        "one-covers-all",
        "a Gaussian in every tile",
        "shape",
        places=fixed([[30.0, 20.0], [5.0, 5.0]]),
        radii=fixed([200, 3]),
        depths=fixed([2.0, 1.0]),
    ),
    family("nothing-seen", "no entry at all", "empty-rows", radii=fixed([0] * 30)),
    family(
        "close-depths",
        "depths that differ in the last bits only",
        "magnitude",
        depths=uniform(30, low=100.0, high=100.001),
    ),
    family("negative-depths", "depths below zero", "sign", depths=uniform(30, low=-5.0, high=5.0)),
    family("gaussians-65", "one beyond a tile of 64", "tile", **cloud(65)),
    family("one-tile", "a single tile", "size-1", width=16, height=16, **cloud(12, reach=16.0)),
    family("one", "a single Gaussian", "size-1", places=fixed([[20.0, 20.0]]), radii=fixed([9]), depths=fixed([1.0])),
    family("empty", "no Gaussian", "empty", **cloud(0)),
    *family.layouts("places"),
]

OPERATOR = FORMULA.describe(
    CASES,
    {"torch": call_torch},
    {
        "farthest first": FORMULA.edit("torch.argsort(depths.double()", "torch.argsort(-depths.double()"),
        "not sorted": FORMULA.edit("torch.argsort(depths.double(), stable=True).tolist()", "list(range(len(depths)))"),
        "of equal depths the higher": FORMULA.edit("torch.argsort(depths.double(), stable=True)", "(len(depths) - 1 - torch.argsort(depths.double().flip(0), stable=True))"),
        "depths in float16": FORMULA.change(depths=lambda d: d.half().float()),
        "depths as unsigned bits": FORMULA.edit("torch.argsort(depths.double(), stable=True)", "torch.argsort(depths.double().abs() + 1e3 * (depths.double() < 0), stable=True)"),
        "tile 16 always": FORMULA.set(tile=16),
        "the last tile left in": FORMULA.edit("torch.ceil((places.double() + radii.double()[:, None]) / tile).long()", "torch.floor((places.double() + radii.double()[:, None]) / tile).long() + 1"),
        "rounded down": FORMULA.edit("torch.ceil(", "torch.floor("),
        "column by column": FORMULA.edit("members[row * columns + column]", "members[column * rows + row]"),
        "image rounded down to tiles": FORMULA.edit("-(-width // tile), -(-height // tile)", "width // tile, height // tile"),
        "invisible ones kept": FORMULA.edit("if sizes[number] <= 0:", "if False:"),
        "the middle's tile only": FORMULA.change(radii=lambda r: (r > 0).long()),
        "x and y swapped": FORMULA.change(places=lambda p: p.flip(-1)),
        "offsets without the total": FORMULA.after(lambda y: (y[0], y[1][:-1])),
        "offsets are counts": FORMULA.after(lambda y: (y[0], torch.diff(y[1], prepend=y[1][:1]))),
        "places in the order for numbers": FORMULA.edit("members[row * columns + column].append(number)", "members[row * columns + column].append(order.index(number))"),
        "Gaussians beyond a tile of 64 lost": FORMULA.edit("for number in order:", "for number in order[:64]:"),
        "radius halved": FORMULA.change(radii=lambda r: (r + 1) // 2),
    },
)  # fmt: skip
