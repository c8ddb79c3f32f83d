"""Cases for multi-scale deformable attention. Keywords: ``value`` (B, S, N, D), ``shapes``, ``places`` (B, Q, N, L, P, 2)
in float32, ``weights`` (B, Q, N, L, P)."""

from __future__ import annotations

from typing import Any

import torch

from precision_align.library.cases import FLOATS
from precision_align.library.drawing import Family, fixed, normal, uniform
from precision_align.library.formulas import Formula

FORMULA = Formula("deformable_attention", tensor="value")
Tensor = torch.Tensor


def sized(
    shapes: tuple[tuple[int, int], ...], b: int = 2, q: int = 5, n: int = 2, d: int = 4, p: int = 3, low: float = 0.1,
    high: float = 0.9,
) -> dict[str, Any]:  # fmt: skip
    levels = len(shapes)
    return {
        "value": normal(b, sum(h * w for h, w in shapes), n, d),
        "shapes": shapes,
        "places": uniform(b, q, n, levels, p, 2, low=low, high=high),
        "weights": normal(b, q, n, levels * p).then(lambda w: torch.softmax(w, -1).unflatten(-1, (levels, p))),
    }


SHAPES = ((6, 7), (3, 4))
family = Family(wrt=("value", "places", "weights"), float32=("places",), **sized(SHAPES))


def call_torch(value: Tensor, shapes: tuple[tuple[int, int], ...], places: Tensor, weights: Tensor) -> Tensor:
    """grid_sample level by level, as mmcv's CPU version does, in the dtype of the places, and back."""
    batch, _, heads, width_ = value.shape
    wide, found = value.to(places.dtype), []
    for level, part in enumerate(wide.split([h * w for h, w in shapes], dim=1)):
        image = part.permute(0, 2, 3, 1).reshape(batch * heads, width_, *shapes[level])
        grid = (2 * places[:, :, :, level] - 1).transpose(1, 2).flatten(0, 1)
        found.append(torch.nn.functional.grid_sample(image, grid, "bilinear", "zeros", False))
    shares = weights.to(places.dtype).permute(0, 2, 1, 3, 4).flatten(0, 1)[:, None]
    total = (torch.stack(found, dim=-2) * shares).sum((-1, -2))
    return total.unflatten(0, (batch, heads)).permute(0, 3, 1, 2).flatten(2).to(value.dtype)


CASES = [
    family("plain", "x and y swapped", "basic", dtypes=FLOATS),
    family("one-level", "a single level", "size-1", **sized(((5, 6),))),
    family("four-levels", "levels in another order", "shape", **sized(((6, 6), (4, 4), (2, 3), (1, 2)))),
    family("level-of-one-pixel", "a level of size 1", "size-1", **sized(((4, 5), (1, 1)))),
    family("at-the-border", "half a pixel beyond is half", "edge", **sized(SHAPES, low=-0.1, high=0.1)),
    family("beyond", "beyond a level is 0", "edge", **sized(SHAPES, low=-1.0, high=2.0)),
    family(
        "exact-centres",
        "weights of 0 and 1",
        "ties",
        value=normal(1, 16, 1, 4),
        shapes=((4, 4),),
        weights=fixed([[[[[1.0, 2.0]]]]]),
        places=fixed([[[[[[0.125, 0.375], [0.875, 0.625]]]]]]),
        wrt=("value", "weights"),
    ),
    family("one-point", "one point a level", "size-1", **sized(SHAPES, p=1)),
    family("heads-3", "heads mixed up", "heads", **sized(SHAPES, n=3)),
    family("queries-65", "one beyond a tile of 64", "tile", **sized(SHAPES, b=1, q=65)),
    family("size-20", "head size not a multiple of 16", "tile", **sized(SHAPES, d=20)),
    family(
        "one-pixel-always",
        "gradients of many points in one pixel are added",
        "accumulation",
        places=fixed([[[[[[0.5, 0.5]] * 3] * 2] * 2] * 5] * 2),
        wrt=("value",),
    ),
    family(
        "large",
        "values near the end of float16",
        "magnitude",
        value=normal(2, 54, 2, 4, gain=1e4),
        dtypes=FLOATS,
        wrt=("value",),
    ),
    family("empty", "no query", "empty", **sized(SHAPES, q=0), wrt=()),
    *family.layouts("value", "weights"),
]

OPERATOR = FORMULA.describe(
    CASES,
    {"torch": call_torch},
    {
        "x and y swapped": FORMULA.change(places=lambda p: p.flip(-1)),
        "corners aligned": FORMULA.edit("* width - 0.5", "* (width - 1)", "* height - 0.5", "* (height - 1)"),
        "half a pixel forgotten": FORMULA.edit("* width - 0.5", "* width"),
        "places in [-1, 1]": FORMULA.change(places=lambda p: (p + 1) / 2),
        "beyond takes the edge": FORMULA.edit("(share * inside)", "share"),
        "edge column cut": FORMULA.edit("(column < width)", "(column < max(width - 1, 1))"),
        "levels overlap": FORMULA.edit("start += height * width", "start += height * (width - 1)"),
        "first level for all": FORMULA.edit("start += height * width", "start += 0"),
        "weights of the first level": FORMULA.edit("* weights[:, :, :, level]", "* weights[:, :, :, 0]"),
        "weights normalised again": FORMULA.change(weights=lambda w: w / w.sum(-1, keepdim=True)),
        "weights ignored": FORMULA.change(weights=lambda w: torch.full_like(w, 1 / (w.shape[-1] * w.shape[-2]))),
        "heads swapped": FORMULA.change(value=lambda v: v.flip(2)),
        "nearest pixel": FORMULA.edit("(1 - (x - column).abs()) * (1 - (y - row).abs())", "((x - column).abs() < 0.5).double() * ((y - row).abs() < 0.5) + 0 * x"),
        "last point lost": FORMULA.edit("[..., None]).sum(dim=-2)", "[..., None])[..., : max(weights.shape[-1] - 1, 1), :].sum(dim=-2)"),
        "places in float16": FORMULA.change(places=lambda p: p.half().float()),
        "rows and columns of the image swapped": FORMULA.edit("* width + column.clamp(0, width - 1))", "+ column.clamp(0, width - 1) * height)"),
        "weights without gradient": FORMULA.edit("weights.double()\n", "weights.double().detach()\n"),
        "gradient of one corner": FORMULA.edit("found = pixels.gather", "pixels = pixels if dy or dx else pixels.detach()\n                found = pixels.gather"),
        "heads in the other order in the result": FORMULA.edit("total.flatten(2)", "total.transpose(2, 3).flatten(2)"),
    },
)  # fmt: skip
