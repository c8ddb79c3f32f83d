"""Cases for non-maximum suppression. Keywords: ``boxes`` (M, 4), ``scores`` (M,), ``threshold``. Result: int64 (K,)."""

from __future__ import annotations

from typing import Any

import torch

from precision_align.library.drawing import Drawn, Family, fixed, levels, normal, uniform
from precision_align.library.formulas import Formula

FORMULA = Formula("nms")
Tensor = torch.Tensor


def boxes(count: int, reach: float = 60.0, size: float = 30.0) -> Drawn:
    """Boxes of ``size`` and less, anywhere up to ``reach``; whole pixels, so that areas are exact."""

    def make(values: Tensor) -> Tensor:
        low = (values[:, :2] * reach).floor()
        return torch.cat([low, low + 1 + (values[:, 2:] * size).floor()], dim=1)

    return uniform(count, 4).then(make)


family = Family(boxes=boxes(24), scores=uniform(24), threshold=0.4, dtypes=("float32",))


def call_torch(boxes: Tensor, scores: Tensor, *, threshold: float) -> Tensor:
    """All overlaps at once as intersection > threshold * union, then one pass over the matrix."""
    order = torch.sort(scores, descending=True, stable=True).indices
    x1, y1, x2, y2 = boxes[order].unbind(-1)
    area = (x2 - x1) * (y2 - y1)
    width = torch.relu(torch.minimum(x2[:, None], x2) - torch.maximum(x1[:, None], x1))
    height = torch.relu(torch.minimum(y2[:, None], y2) - torch.maximum(y1[:, None], y1))
    inner = width * height
    covers = inner / (area[:, None] + area - inner) > threshold
    keep = torch.ones(len(order), dtype=torch.bool, device=boxes.device)
    for i in range(len(order)):
        keep[i + 1 :] &= ~(keep[i] & covers[i, i + 1 :])
    return order[keep]


PAIR: Any = fixed([[0.0, 0, 4, 2], [0.0, 0, 2, 2]])  # overlap: exactly one half
CASES = [
    family("plain", "sorted by number, not by score", "basic", dtypes=("float32", "float16")),
    family("threshold-0", "everything that touches goes", "threshold", threshold=0.0),
    family("threshold-0.8", "the threshold ignored", "threshold", threshold=0.8),
    family("threshold-1", "nothing goes", "threshold", threshold=1.0),
    family(
        "at-the-threshold",
        "greater, not greater or equal",
        "ties",
        boxes=PAIR,
        scores=fixed([0.9, 0.8]),
        threshold=0.5,
        exact=True,
    ),
    family("equal-scores", "of equal scores the lower number", "ties", scores=levels(24, low=1, high=3), exact=True),
    family("equal-boxes", "the same box many times", "ties", boxes=fixed([[1.0, 2, 9, 8]] * 9), scores=uniform(9)),
    family(
        "touching",
        "a common edge is no overlap",
        "edge",
        boxes=fixed([[0.0, 0, 2, 2], [2.0, 0, 4, 2], [0.0, 2, 2, 4]]),
        scores=fixed([0.5, 0.9, 0.7]),
        threshold=0.0,
        exact=True,
    ),
    family(
        "apart-in-one-direction",
        "a negative width times a negative height",
        "edge",
        boxes=fixed([[0.0, 0, 9, 9], [20.0, 20, 29, 29]]),
        scores=fixed([0.5, 0.9]),
        threshold=0.3,
    ),
    family(
        "empty-boxes",
        "no area: 0 / 0 suppresses nothing",
        "rows",
        boxes=fixed([[3.0, 3, 3, 3], [3.0, 3, 3, 3], [0.0, 0, 9, 9]]),
        scores=fixed([0.9, 0.8, 0.7]),
        exact=True,
    ),
    family(
        "chain",
        "what is suppressed suppresses nothing",
        "shape",
        boxes=fixed([[0.0, 0, 10, 10], [4.0, 0, 14, 10], [8.0, 0, 18, 10]]),
        scores=fixed([0.9, 0.8, 0.7]),
        threshold=0.3,
        exact=True,
    ),
    family(
        "far-from-zero",
        "coordinates of 5000: areas by products cancel in float16",
        "magnitude",
        boxes=boxes(24, reach=50.0).then(lambda b: b + 5000.0),
    ),
    family("negative-scores", "scores below zero", "sign", scores=normal(24)),
    family("boxes-70", "beyond a tile of 64", "tile", boxes=boxes(70), scores=uniform(70)),
    family("one-box", "a single box", "size-1", boxes=boxes(1), scores=uniform(1)),
    family("empty", "no box", "empty", boxes=boxes(0), scores=uniform(0)),
    *family.layouts("boxes"),
]

OPERATOR = FORMULA.describe(
    CASES,
    {"torch": call_torch},
    {
        "by number": FORMULA.edit("torch.argsort(-scores.double(), stable=True)", "torch.arange(len(scores))"),
        "worst first": FORMULA.edit("torch.argsort(-scores", "torch.argsort(scores"),
        "of equal scores the higher": FORMULA.edit("torch.argsort(-scores.double(), stable=True)", "torch.argsort(scores.double(), stable=True).flip(0)"),
        "greater or equal": FORMULA.edit("overlap > threshold", "overlap >= threshold"),
        "sizes plus one": FORMULA.edit("(high - low).clamp(min=0)", "(high - low + 1).clamp(min=0)"),
        "overlap of the smaller": FORMULA.edit("(areas[best] + areas[left] - inner)", "torch.minimum(areas[best], areas[left])"),
        "intersection counted twice": FORMULA.edit("areas[left] - inner", "areas[left]"),
        "negative sizes": FORMULA.edit(".clamp(min=0)", ""),
        "suppressed ones suppress": FORMULA.edit("left = left[~(overlap > threshold)]", "left = left[~((overlap > threshold) | _reach(boxes, left, overlap > threshold, threshold))]", "def nms(", "def _reach(boxes, left, gone, threshold):\n    low = torch.maximum(boxes[left][:, None, :2], boxes[left][None, :, :2])\n    high = torch.minimum(boxes[left][:, None, 2:], boxes[left][None, :, 2:])\n    inner = (high - low).clamp(min=0).prod(-1)\n    area = (boxes[left][:, 2:] - boxes[left][:, :2]).prod(-1)\n    return (((inner / (area[:, None] + area - inner)) > threshold) & gone).any(1)\n\n\ndef nms("),
        "0 / 0 suppresses": FORMULA.edit("~(overlap > threshold)", "overlap <= threshold"),
        "sorted result": FORMULA.after(lambda kept: kept.sort().values),
        "threshold 0.5 always": FORMULA.set(threshold=0.5),
        "boxes as centre and size": FORMULA.change(boxes=lambda b: torch.cat([b[:, :2] - b[:, 2:] / 2, b[:, :2] + b[:, 2:] / 2], 1)),
        "fewer than two boxes: nothing": FORMULA.after(lambda kept: kept if len(kept) > 1 else kept[:0]),
        "one box only": FORMULA.after(lambda kept: kept[:1]),
        "boxes beyond a tile of 32 kept": FORMULA.edit("~(overlap > threshold)", "~((overlap > threshold) & (torch.arange(len(left)) < 32))"),
        "coordinates in float16": FORMULA.change(boxes=lambda b: b.half().float() if b.abs().max() > 4096 else b),
        "equal boxes kept": FORMULA.edit("overlap > threshold", "(overlap > threshold) & (overlap < 1)"),
    },
)  # fmt: skip
