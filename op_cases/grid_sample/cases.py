"""Cases for grid_sample. Keywords: ``x`` (N, C, H, W), ``grid`` (N, Ho, Wo, 2) in float32, ``mode``, ``padding``,
``align_corners``."""

from __future__ import annotations

import math

import torch

from precision_align.library.cases import FLOATS, OpCase, Search
from precision_align.library.drawing import Family, fixed, normal, uniform
from precision_align.library.formulas import Formula

FORMULA = Formula("grid_sample", tensor="x")
Tensor = torch.Tensor
family = Family(
    x=normal(2, 3, 6, 7), grid=uniform(2, 5, 4, 2, low=-0.9, high=0.9), wrt=("x", "grid"), float32=("grid",)
)


def call_torch(
    x: Tensor, grid: Tensor, *, mode: str = "bilinear", padding: str = "zeros", align_corners: bool = False
) -> Tensor:
    """torch.nn.functional.grid_sample in the grid's dtype, and back."""
    found = torch.nn.functional.grid_sample(x.to(grid.dtype), grid, mode, padding, align_corners)
    return found.to(x.dtype)


def make_worst(height: int, width: int, reach: float) -> OpCase:
    return family("searched", "the worst of sizes and places", x=normal(1, 1, height, width),
                  grid=uniform(1, 5, 5, 2, low=-reach, high=reach))  # fmt: skip


BEYOND = uniform(2, 5, 4, 2, low=-4.7, high=4.7)
CASES = [
    family("plain", "x and y swapped", "basic", dtypes=FLOATS),
    family("align-corners", "align_corners ignored", "corners", align_corners=True),
    family("nearest", "bilinear for nearest", "mode", mode="nearest", wrt=("x",)),
    family(
        "nearest-corners",
        "the nearest pixel by the other convention",
        "mode",
        mode="nearest",
        align_corners=True,
        wrt=("x",),
    ),
    family("beyond-zeros", "beyond the image is 0, half a pixel beyond is half", "padding", grid=BEYOND),
    family("beyond-border", "beyond the image is its edge", "padding", grid=BEYOND, padding="border"),
    family(
        "beyond-border-corners",
        "beyond the image is its edge",
        "padding",
        grid=BEYOND,
        padding="border",
        align_corners=True,
    ),
    family("beyond-reflection", "reflected about the outer edge", "padding", grid=BEYOND, padding="reflection"),
    family(
        "beyond-reflection-corners",
        "reflected about the centre of the last pixel",
        "padding",
        grid=BEYOND,
        padding="reflection",
        align_corners=True,
    ),
    family(
        "nearest-reflection",
        "rounding after the reflection",
        "padding",
        grid=BEYOND,
        padding="reflection",
        mode="nearest",
        wrt=("x",),
    ),
    family(
        "exact-pixels",
        "weights of 0 and 1",
        "ties",
        x=normal(1, 2, 4, 4),
        grid=fixed([[[[-0.75, -0.25], [0.25, 0.75], [-0.25, 0.25]]]]),
        wrt=("x",),
    ),
    family(
        "nearest-halves",
        "halves to even",
        "ties",
        x=normal(1, 2, 4, 4),
        grid=fixed([[[[-0.5, -0.5], [0.0, 0.0], [0.5, 0.5], [0.0, 0.5]]]]),
        mode="nearest",
        exact=True,
        wrt=("x",),
    ),
    family("one-pixel", "an image of one pixel", "size-1", x=normal(2, 3, 1, 1)),
    family(
        "width-67", "beyond a tile of 64", "tile", x=normal(1, 1, 3, 67), grid=uniform(1, 2, 9, 2, low=-0.9, high=0.9)
    ),
    family(
        "large",
        "values near the end of float16",
        "magnitude",
        x=normal(2, 3, 6, 7, gain=1e4),
        dtypes=FLOATS,
        wrt=("x",),
    ),
    family("empty", "no place", "empty", grid=uniform(2, 0, 4, 2)),
    family(
        "nan-pixel", "NaN spoils what touches it", "nonfinite", wrt=(), x=normal(2, 3, 6, 7).at((0, 1, 3, 3), math.nan)
    ),
    *family.layouts("x", "grid"),
]

OPERATOR = FORMULA.describe(
    CASES,
    {"torch": call_torch},
    {
        "x and y swapped": FORMULA.change(grid=lambda grid: grid.flip(-1)),
        "align_corners always": FORMULA.set(align_corners=True),
        "align_corners never": FORMULA.set(align_corners=False),
        "bilinear always": FORMULA.set(mode="bilinear"),
        "zeros always": FORMULA.set(padding="zeros"),
        "border for reflection": FORMULA.edit('padding == "reflection"', "False"),
        "reflected about the other edge": FORMULA.edit("(0.0, size - 1.0) if align_corners", "(0.0, size - 1.0) if not align_corners and size > 1"),
        "reflected once only": FORMULA.edit("torch.floor(off.detach() / span)", "torch.floor(off.detach() / span).clamp(max=1)"),
        "weights swapped": FORMULA.edit("(1 - fx)[:, None] * _pick(x, top, left) + fx[:, None]", "fx[:, None] * _pick(x, top, left) + (1 - fx)[:, None]"),
        "floor for nearest": FORMULA.edit("torch.round(places[1].detach()).long(), torch.round(places[0].detach()).long()", "torch.floor(places[1].detach()).long(), torch.floor(places[0].detach()).long()"),
        "halves up": FORMULA.edit("torch.round(places[1].detach()).long(), torch.round(places[0].detach()).long()", "torch.floor(places[1].detach() + 0.5).long(), torch.floor(places[0].detach() + 0.5).long()"),
        "beyond is the edge": FORMULA.edit("torch.where(inside[:, None], found, torch.zeros((), dtype=x.dtype, device=x.device))", "found"),
        "edge pixels cut": FORMULA.edit("(column < width)", "(column < max(width - 1, 1))"),
        "one channel for all": FORMULA.edit("x.flatten(2).gather", "x[:, :1].expand_as(x).flatten(2).gather"),
        "weights in bfloat16": FORMULA.edit("(place - edge for place", "((place - edge).bfloat16().double() for place"),
        "place without gradient": FORMULA.edit("x.double(), grid.double()", "x.double(), grid.double().detach()"),
        "gradient of the clamp passes": FORMULA.edit("return place.clamp(0, size - 1)", "return place + (place.clamp(0, size - 1) - place).detach()"),
    },
    search=Search(make_worst, {"height": (1, 12), "width": (1, 12), "reach": (0.1, 4.0)}),
)  # fmt: skip
