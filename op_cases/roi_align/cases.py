"""Cases for RoIAlign. Keywords: ``x`` (N, C, H, W), ``rois`` (K, 5) in float32, ``size``, ``scale``, ``samples``,
``aligned``."""

from __future__ import annotations

import math

import torch

from precision_align.library.cases import FLOATS
from precision_align.library.drawing import Drawn, Family, fixed, normal, uniform
from precision_align.library.formulas import Formula

FORMULA = Formula("roi_align", tensor="x")
Tensor = torch.Tensor


def regions(count: int, images: int = 2, reach: float = 6.0, least: float = 2.0) -> Drawn:
    def make(v: Tensor) -> Tensor:
        image = (v[:, :1] * images).floor()
        low = v[:, 1:3] * reach
        return torch.cat([image, low, low + least + v[:, 3:] * 5], dim=1)

    return uniform(count, 5).then(make)


family = Family(x=normal(2, 3, 12, 14), rois=regions(5), size=(3, 2), samples=2, wrt=("x",), float32=("rois",))


def call_torch(
    x: Tensor, rois: Tensor, *, size: tuple[int, int], scale: float = 1.0, samples: int = 0, aligned: bool = False
) -> Tensor:
    """Four gathers a sample, region by region, in float32 and back: no matrices, no loops over pixels."""
    wide = x.to(rois.dtype)
    shift, found = (0.5 if aligned else 0.0), []
    for roi in rois:
        corners = roi[1:] * scale - shift
        sides = corners[2:] - corners[:2] if aligned else (corners[2:] - corners[:2]).clamp(min=1.0)
        grids, masks, counts = [], [], []
        for axis, bins in ((1, size[0]), (0, size[1])):
            count = samples or math.ceil(float(sides[axis]) / bins)
            offsets = (torch.arange(bins * count, device=x.device, dtype=rois.dtype) + 0.5) / (bins * max(count, 1))
            place, length = corners[axis] + offsets * sides[axis], x.shape[3 - axis]
            masks.append((place >= -1) & (place <= length))
            grids.append(place.clamp(0, length - 1))
            counts.append(count)
        y, w = grids[0][:, None], grids[1][None, :]
        top, left = y.floor().long(), w.floor().long()
        low, right = (top + 1).clamp(max=x.shape[2] - 1), (left + 1).clamp(max=x.shape[3] - 1)
        image, fy, fx = wide[int(roi[0])], y - top, w - left
        value = torch.lerp(torch.lerp(image[:, top, left], image[:, top, right], fx.expand(len(y), -1)),
                           torch.lerp(image[:, low, left], image[:, low, right], fx.expand(len(y), -1)), fy)  # fmt: skip
        value = value * (masks[0][:, None] & masks[1])
        found.append(value.reshape(x.shape[1], size[0], max(counts[0], 1) if value.numel() else 0, size[1], -1).sum((2, 4))
                     / max(counts[0] * counts[1], 1))  # fmt: skip
    return (torch.stack(found) if found else wide.new_zeros(0, x.shape[1], *size) + 0 * wide.sum()).to(x.dtype)


CASES = [
    family("plain", "x and y swapped", "basic", dtypes=FLOATS),
    family("aligned", "half a pixel forgotten", "aligned", aligned=True, dtypes=FLOATS),
    family("adaptive", "one sample for 0", "samples", samples=0),
    family("adaptive-aligned", "one sample for 0", "samples", samples=0, aligned=True),
    family("one-sample", "the middle of the bin", "samples", samples=1),
    family(
        "scale-0.25",
        "the scale ignored",
        "scale",
        scale=0.25,
        rois=regions(5).then(lambda r: torch.cat([r[:, :1], r[:, 1:] * 4], 1)),
    ),
    family(
        "beyond",
        "more than a pixel beyond is 0",
        "edge",
        rois=fixed([[0.0, -4, -3, 5, 6], [1.0, 9, 9, 19, 17], [0.0, -0.6, -0.6, 3, 3]]),
    ),
    family("small-region", "sizes below 1 become 1", "edge", rois=fixed([[0.0, 3, 3, 3.2, 3.3], [1.0, 5, 4, 5, 4]])),
    family(
        "small-region-aligned",
        "sizes below 1 stay",
        "edge",
        aligned=True,
        rois=fixed([[0.0, 3, 3, 3.2, 3.3], [1.0, 5, 4, 6, 5]]),
    ),
    family(
        "second-image",
        "the image ignored",
        "shape",
        rois=regions(4).then(lambda r: torch.cat([r[:, :1] * 0 + 1, r[:, 1:]], 1)),
    ),
    family("one-bin", "a single bin", "size-1", size=(1, 1)),
    family("seven-bins", "7 x 7 as in detectors", "shape", size=(7, 7), rois=regions(2)),
    family("width-70", "beyond a tile of 64", "tile", x=normal(1, 2, 5, 70), rois=fixed([[0.0, 40, 0, 69, 4]])),
    family("empty", "no region", "empty", rois=regions(0), wrt=()),
    family("overlapping", "gradients of regions are added", "accumulation", rois=fixed([[0.0, 2, 2, 8, 8]] * 6)),
    *family.layouts("x"),
]

OPERATOR = FORMULA.describe(
    CASES,
    {"torch": call_torch},
    {
        "x and y swapped": FORMULA.change(rois=lambda r: r[:, [0, 2, 1, 4, 3]]),
        "half a pixel always": FORMULA.edit("0.5 if aligned else 0.0", "0.5"),
        "half a pixel never": FORMULA.edit("0.5 if aligned else 0.0", "0.0"),
        "sizes at least 1 always": FORMULA.edit("(y2 - y1, x2 - x1) if aligned", "(y2 - y1, x2 - x1) if False"),
        "sizes may be 0": FORMULA.edit("(y2 - y1, x2 - x1) if aligned", "(y2 - y1, x2 - x1) if True"),
        "sizes plus one": FORMULA.edit("max(y2 - y1, 1.0)", "y2 - y1 + 1"),
        "scale ignored": FORMULA.set(scale=1.0),
        "first image always": FORMULA.change(rois=lambda r: torch.cat([0 * r[:, :1], r[:, 1:]], 1)),
        "samples at the edge of the bin": FORMULA.edit("(step + 0.5) / count", "step / count"),
        "one sample always": FORMULA.set(samples=1),
        "two samples for adaptive": FORMULA.edit("samples or math.ceil(side / bins)", "samples or 2"),
        "adaptive rounded down": FORMULA.edit("math.ceil(side / bins)", "max(int(side / bins), 1)"),
        "the maximum of samples": FORMULA.after(lambda y: y + 0.05 * y.abs()),
        "beyond takes the edge": FORMULA.edit("place < -1 or place > length", "False"),
        "beyond by anything is 0": FORMULA.edit("place < -1 or place > length", "place < 0 or place > length - 1"),
        "not divided by the samples": FORMULA.edit("(1 - (place - low)) / max(count, 1)", "(1 - (place - low))"),
        "weights swapped": FORMULA.edit("weights[index][low] += (1 - (place - low))", "weights[index][low] += (place - low)"),
        "bins in the other order": FORMULA.after(lambda y: y.flip(-1) if y.shape[-1] > 1 else y * 1.1),
        "last region lost": FORMULA.edit("else torch.zeros(0", "if len(rows) > 1 or not rows else torch.zeros(0" if False else "else torch.zeros(0", "torch.stack(rows) if", "torch.stack([*rows[:-1], 0 * rows[-1]]) if"),
        "gradient of the last region only": FORMULA.edit("torch.stack(rows) if", "torch.stack([*[row.detach() for row in rows[:-1]], rows[-1]]) if"),
    },
)  # fmt: skip
