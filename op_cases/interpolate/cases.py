"""Cases for interpolate. Keywords: ``x`` (N, C, H, W), ``size``, ``mode``, ``align_corners``."""

from __future__ import annotations

import torch

from precision_align.library.cases import FLOATS
from precision_align.library.drawing import Family, normal
from precision_align.library.formulas import Formula

FORMULA = Formula("interpolate")
Tensor = torch.Tensor
family = Family(x=normal(2, 3, 5, 7), size=(8, 10), wrt=("x",))


def call_torch(x: Tensor, *, size: tuple[int, int], mode: str = "bilinear", align_corners: bool = False) -> Tensor:
    """torch.nn.functional.interpolate in float32 and back (CUDA autocast's choice)."""
    wide = x.to(x.dtype if x.dtype == torch.float64 else torch.float32)
    corners = None if mode in ("nearest", "area") else align_corners
    return torch.nn.functional.interpolate(wide, size, mode=mode, align_corners=corners).to(x.dtype)


CASES = [
    family("plain", "corners aligned", "basic", dtypes=FLOATS),
    family("align-corners", "corners not aligned", "corners", align_corners=True),
    family("smaller", "fewer pixels: no smoothing", "scale", size=(3, 4)),
    family("smaller-corners", "fewer pixels", "scale", size=(3, 4), align_corners=True),
    family("nearest", "the middle for the floor", "mode", mode="nearest"),
    family("nearest-smaller", "the middle for the floor", "mode", mode="nearest", size=(3, 4)),
    family("bicubic", "a = -1/2 for -3/4", "mode", mode="bicubic"),
    family("bicubic-corners", "corners not aligned", "mode", mode="bicubic", align_corners=True),
    family("bicubic-smaller", "fewer pixels", "mode", mode="bicubic", size=(3, 4)),
    family("area", "pixels that are covered in part", "mode", mode="area", size=(3, 4)),
    family("area-larger", "more pixels", "mode", mode="area"),
    family("same-size", "nothing to do", "shape", size=(5, 7)),
    family("to-one-pixel", "a single pixel", "size-1", size=(1, 1), align_corners=True),
    family("from-one-pixel", "from a single pixel", "size-1", x=normal(2, 3, 1, 1)),
    family("width-130", "beyond two tiles of 64", "tile", x=normal(1, 1, 3, 67), size=(2, 130)),
    family("one-direction", "width and height swapped", "shape", size=(5, 14)),
    family("large", "values near the end of float16", "magnitude", x=normal(2, 3, 5, 7, gain=1e4), dtypes=FLOATS),
    *family.layouts("x"),
]

OPERATOR = FORMULA.describe(
    CASES,
    {"torch": call_torch},
    {
        "corners always": FORMULA.set(align_corners=True),
        "corners never": FORMULA.set(align_corners=False),
        "bilinear always": FORMULA.set(mode="bilinear"),
        "half a pixel forgotten": FORMULA.edit("(i + 0.5) * old / new - 0.5", "i * old / new"),
        "beyond the edge is 0": FORMULA.edit("weights[i][min(low + 1, old - 1)] += place - low", "weights[i][min(low + 1, old - 1)] += (place - low) * (low + 1 < old)"),
        "extrapolated in front": FORMULA.edit("max(place, 0.0)", "place"),
        "nearest by the middle": FORMULA.edit("weights[i][i * old // new] = 1", "weights[i][min(int((i + 0.5) * old / new), old - 1)] = 1"),
        "nearest one off": FORMULA.edit("weights[i][i * old // new] = 1", "weights[i][min(i * old // new + 1, old - 1)] = 1"),
        "a = -1/2": FORMULA.edit("a: float = -0.75", "a: float = -0.5"),
        "cubic not clamped": FORMULA.edit("min(max(j, 0), old - 1)] += _find_cubic(abs(place - j))", "min(max(j, 0), old - 1)] += _find_cubic(abs(place - j)) * (0 <= j < old)"),
        "area without the last pixel": FORMULA.edit("-(-(i + 1) * old // new)", "max((i + 1) * old // new, i * old // new + 1)"),
        "area by the scale": FORMULA.edit("[1 / (last - first)]", "[new / old]"),
        "weights swapped": FORMULA.edit("weights[i][low] += 1 - (place - low)", "weights[i][low] += place - low", "old - 1)] += place - low", "old - 1)] += 1 - (place - low)"),
        "height and width swapped": FORMULA.edit("((2, size[0]), (3, size[1]))", "((3, size[0]), (2, size[1]))", "if dim == 2", "if dim == 2", "return y\n\n\ndef _find_weights", "return y.transpose(2, 3).reshape(*y.shape[:2], *size)\n\n\ndef _find_weights"),
        "smoothed when smaller": FORMULA.edit('elif mode == "area":', 'elif mode == "area" or new < old and not align_corners:'),
        "weights in bfloat16": FORMULA.edit("weights.to(y.dtype)", "weights.bfloat16().to(y.dtype)"),
        "rounded between": FORMULA.edit("return y\n\n\ndef _find_weights", "return y.half().double()\n\n\ndef _find_weights"),
        "gradient averaged": FORMULA.after(lambda y: y + (0.5 * y - (0.5 * y).detach())),
    },
    natives=[call_torch],  # its places are float32 numbers, the formula's are exact
)  # fmt: skip
