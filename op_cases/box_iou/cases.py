"""Cases for box overlaps. Keywords: ``a``, ``b`` (M, 4), ``kind`` ("iou", "giou", "diou", "ciou"), ``eps``."""

from __future__ import annotations

import math

import torch

from precision_align.library.drawing import Drawn, Family, derived, fixed, uniform
from precision_align.library.formulas import Formula

FORMULA = Formula("box_iou")
Tensor = torch.Tensor


def boxes(count: int, reach: float = 30.0) -> Drawn:
    return uniform(count, 4).then(lambda v: torch.cat([v[:, :2] * reach, v[:, :2] * reach + 5 + v[:, 2:] * 30], dim=1))


family = Family(a=boxes(20), b=boxes(20), wrt=("a", "b"), dtypes=("float32",))


def call_torch(a: Tensor, b: Tensor, *, kind: str = "iou", eps: float = 1e-7) -> Tensor:
    """Coordinate by coordinate, with torch.clamp and atan2."""
    ax, ay, aw, ah = a[:, 0], a[:, 1], a[:, 2] - a[:, 0], a[:, 3] - a[:, 1]
    bx, by, bw, bh = b[:, 0], b[:, 1], b[:, 2] - b[:, 0], b[:, 3] - b[:, 1]
    width = torch.relu(torch.min(a[:, 2], b[:, 2]) - torch.max(ax, bx))
    height = torch.relu(torch.min(a[:, 3], b[:, 3]) - torch.max(ay, by))
    union = torch.addcmul(torch.addcmul(-width * height, aw, ah), bw, bh)
    iou = width * height / (union + eps)
    if kind == "iou":
        return iou
    hull_w, hull_h = (torch.max(a[:, i + 2], b[:, i + 2]) - torch.min(a[:, i], b[:, i]) for i in (0, 1))
    if kind == "giou":
        return iou - 1 + (union + eps) / (hull_w * hull_h + eps)
    dx, dy = (ax + aw / 2) - (bx + bw / 2), (ay + ah / 2) - (by + bh / 2)
    near = iou - (dx**2 + dy**2) / (hull_w**2 + hull_h**2 + eps)
    if kind == "diou":
        return near
    v = (torch.atan2(bw, bh + eps) - torch.atan2(aw, ah + eps)) ** 2 * (4 / math.pi**2)
    with torch.no_grad():
        factor = v / (v - iou + (1 + eps))
    return near - factor * v


CASES = [
    family("iou", "intersection for union", "basic"),
    family("giou", "the enclosing box forgotten", "basic", kind="giou"),
    family("diou", "the distance not squared", "basic", kind="diou"),
    family("ciou", "the aspect term forgotten", "basic", kind="ciou"),
    family("apart", "no overlap: negative sizes", "edge", b=boxes(20).then(lambda v: v + 100.0)),
    family("apart-giou", "still a gradient", "edge", kind="giou", b=boxes(20).then(lambda v: v + 100.0)),
    family("apart-diou", "still a gradient", "edge", kind="diou", b=boxes(20).then(lambda v: v + 100.0)),
    family("same", "identical boxes: 1", "ties", b=derived(torch.clone, "a"), kind="diou", wrt=()),
    family(
        "inside",
        "one box in the other",
        "shape",
        b=derived(lambda a: torch.cat([a[:, :2] + 1, a[:, 2:] - 1], 1), "a"),
        kind="giou",
        wrt=("a",),
    ),
    family(
        "no-area",
        "0 / eps",
        "rows",
        a=fixed([[3.0, 3, 3, 3], [1.0, 1, 4, 4]]),
        b=fixed([[3.0, 3, 3, 3], [2.0, 2, 2, 5]]),
        wrt=(),
    ),
    family("eps-1", "eps ignored", "eps", eps=1.0, kind="ciou"),
    family(
        "far-from-zero",
        "coordinates of 5000",
        "magnitude",
        a=boxes(20).then(lambda v: v + 5000.0),
        b=boxes(20).then(lambda v: v + 5000.0),
        kind="giou",
    ),
    family("pairs-65", "one beyond a tile of 64", "tile", a=boxes(65), b=boxes(65), kind="giou"),
    family("one-pair", "a single pair", "size-1", a=boxes(1), b=boxes(1), kind="ciou"),
    family("empty", "no pair", "empty", a=boxes(0), b=boxes(0)),
    *family.layouts("a", "b"),
]

OPERATOR = FORMULA.describe(
    CASES,
    {"torch": call_torch},
    {
        "iou always": FORMULA.set(kind="iou"),
        "giou for diou": FORMULA.edit('kind == "giou"', 'kind in ("giou", "diou")'),
        "diou for ciou": FORMULA.edit('kind == "diou"', 'kind in ("diou", "ciou")'),
        "intersection counted twice": FORMULA.edit("size_b.prod(dim=-1) - inner", "size_b.prod(dim=-1)"),
        "overlap of the smaller": FORMULA.edit("inner / (union + eps)", "inner / (torch.minimum(size_a.prod(-1), size_b.prod(-1)) + eps)"),
        "sizes plus one": FORMULA.edit("size_a, size_b = a[:, 2:] - a[:, :2], b[:, 2:] - b[:, :2]", "size_a, size_b = a[:, 2:] - a[:, :2] + 1, b[:, 2:] - b[:, :2] + 1"),
        "negative sizes": FORMULA.edit(".clamp(min=0)", ""),
        "hull of the intersection": FORMULA.edit("torch.maximum(a[:, 2:], b[:, 2:]) - torch.minimum(a[:, :2], b[:, :2])", "torch.minimum(a[:, 2:], b[:, 2:]) - torch.maximum(a[:, :2], b[:, :2])"),
        "union over the hull": FORMULA.edit("(whole - union)", "union"),
        "distance not squared": FORMULA.edit("centres.square().sum(dim=-1)", "centres.square().sum(dim=-1).sqrt()"),
        "corners for centres": FORMULA.edit("(a[:, :2] + a[:, 2:] - b[:, :2] - b[:, 2:]) / 2", "a[:, :2] - b[:, :2]"),
        "centres not halved": FORMULA.edit("b[:, 2:]) / 2", "b[:, 2:])"),
        "height over width": FORMULA.edit("size[:, 0] / (size[:, 1] + eps)", "size[:, 1] / (size[:, 0] + eps)", "(angle_b - angle_a)", "(angle_b - 1.05 * angle_a)"),
        "angle not squared": FORMULA.edit("(angle_b - angle_a).square()", "(angle_b - angle_a).abs()"),
        "gradient through the factor": FORMULA.edit(".detach() * v", " * v"),
        "eps ignored": FORMULA.set(eps=0.0),
        "eps 1e-7 always": FORMULA.set(eps=1e-7),
        "boxes as centre and size": FORMULA.change(b=lambda v: torch.cat([v[:, :2] - v[:, 2:] / 2, v[:, :2] + v[:, 2:] / 2], 1)),
    },
)  # fmt: skip
