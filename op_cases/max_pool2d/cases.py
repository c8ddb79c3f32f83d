"""Cases for max_pool2d with indices. Keywords: ``x`` (N, C, H, W), ``size``, ``stride``, ``padding``, ``dilation``."""

from __future__ import annotations

import math

import torch

from precision_align.library.cases import FLOATS
from precision_align.library.drawing import Family, levels, normal
from precision_align.library.formulas import Formula

FORMULA = Formula("max_pool2d")
Tensor = torch.Tensor
family = Family(x=normal(2, 3, 9, 11), size=3, wrt=("x",))


def call_torch(x: Tensor, *, size: int, stride: int = 0, padding: int = 0, dilation: int = 1) -> tuple[Tensor, Tensor]:
    """torch.nn.functional.max_pool2d(return_indices=True). On the NPU the second result is a mask of another shape."""
    return torch.nn.functional.max_pool2d(x, size, stride or None, padding, dilation, return_indices=True)


CASES = [
    family("plain", "places within the window", "basic", dtypes=FLOATS),
    family("overlapping", "gradients of overlapping windows are added", "stride", stride=1),
    family("stride-2", "stride ignored", "stride", stride=2),
    family("padding", "padding of 0 beats negative values", "padding", padding=1, x=normal(2, 3, 9, 11, mean=-5.0)),
    family("dilation", "dilation ignored", "dilation", dilation=2, stride=1),
    family("ties", "of equals the first", "ties", x=levels(2, 3, 9, 11, low=0, high=2), exact=True),
    family(
        "ties-overlapping",
        "of equals the first",
        "ties",
        x=levels(2, 3, 9, 11, low=0, high=1),
        stride=1,
        padding=1,
        exact=True,
    ),
    family("size-1", "a window of one", "size-1", size=1),
    family("whole-image", "one window", "size-1", size=9, x=normal(1, 2, 9, 9)),
    family("width-67", "beyond a tile of 64", "tile", x=normal(1, 1, 4, 67), size=2),
    family("large", "values near the end of float16", "magnitude", x=normal(2, 3, 9, 11, gain=1e4), dtypes=FLOATS),
    family(
        "close-values",
        "values that differ in the last bits only",
        "magnitude",
        x=normal(2, 3, 9, 11, gain=0.01, mean=100.0),
        dtypes=("float32",),
    ),
    family(
        "minus-infinity",
        "a window of minus infinity",
        "nonfinite",
        wrt=(),
        x=normal(1, 1, 6, 6).at((0, 0, slice(0, 3), slice(0, 3)), -math.inf),
    ),
    family("empty", "no image", "empty", x=normal(0, 3, 9, 11)),
    *family.layouts("x"),
]

OPERATOR = FORMULA.describe(
    CASES,
    {"torch": call_torch},
    {
        "of equals the last": FORMULA.edit(".detach().argmax(dim=-1)", ".detach().flip(-1).argmax(dim=-1)", "best = torch", "best = windows.shape[-1] - 1 - torch"),
        "minimum": FORMULA.edit("torch.where(torch.isnan(windows), torch.inf, windows)", "(-windows)"),
        "mean": FORMULA.edit("return windows.gather(-1, best[..., None])[..., 0], index", "return windows.nan_to_num(neginf=0.0).mean(-1), index"),
        "padding of 0": FORMULA.edit("~inside, -torch.inf", "~inside, 0.0"),
        "places within the window": FORMULA.edit("[..., 0], index", "[..., 0], best"),
        "places by column": FORMULA.edit("[..., 0], index", "[..., 0], index % width * height + index // width"),
        "places one off": FORMULA.edit("[..., 0], index", "[..., 0], index + 1"),
        "stride 1 always": FORMULA.edit("stride or size, x.shape[2]", "stride or size, x.shape[2]", "(size - 1) + 1, stride)", "(size - 1) + 1, size)"),
        "dilation 1": FORMULA.edit("[:, ::dilation]", "[:, :size]"),
        "last row of the window lost": FORMULA.edit("rows, columns = (part.unfold", "rows, columns = (part.roll(0).unfold", "~inside, -torch.inf", "~inside | (torch.arange(inside.shape[-1]) >= max(inside.shape[-1] - size, 1)), -torch.inf"),
        "compared in bfloat16": FORMULA.edit("torch.inf, windows)", "torch.inf, windows.bfloat16().double())"),
        "largest magnitude": FORMULA.edit("torch.inf, windows)", "torch.inf, windows.nan_to_num(neginf=0.0).abs())"),
        "gradient to the whole window": FORMULA.edit("return windows.gather(-1, best[..., None])[..., 0]", "return windows.gather(-1, best[..., None])[..., 0].detach() + (windows - windows.detach()).nan_to_num().mean(-1)"),
        "minus infinity becomes the lowest number": FORMULA.after(lambda y: (y[0].clamp(min=-65000.0), y[1])),
    },
    rule="exact",
)  # fmt: skip
