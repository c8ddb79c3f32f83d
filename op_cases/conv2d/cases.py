"""Cases for conv2d. Keywords: ``x`` (N, C, H, W), ``weight`` (O, C / groups, kh, kw), ``bias``, ``stride``, ``padding``,
``dilation``, ``groups``."""

from __future__ import annotations

import math
from typing import Any, Optional

import torch

from precision_align.library.cases import FLOATS
from precision_align.library.drawing import Family, normal
from precision_align.library.formulas import Formula

FORMULA = Formula("conv2d")
Tensor = torch.Tensor
family = Family(x=normal(2, 4, 7, 8), weight=normal(6, 4, 3, 3, gain=0.3), wrt=("x", "weight", "bias"))


def call_torch(x: Tensor, weight: Tensor, bias: Optional[Tensor] = None, **options: Any) -> Tensor:
    """torch.nn.functional.conv2d in float32 and back."""
    wide = x.dtype if x.dtype == torch.float64 else torch.float32
    bias = None if bias is None else bias.to(wide)
    return torch.nn.functional.conv2d(x.to(wide), weight.to(wide), bias, **options).to(x.dtype)


CASES = [
    family("plain", "a flipped kernel", "basic", dtypes=FLOATS),
    family("bias", "the bias forgotten", "bias", bias=normal(6), dtypes=FLOATS),
    family("stride-2", "stride ignored", "stride", stride=2),
    family("stride-3-padding", "the last window", "stride", stride=3, padding=2),
    family("padding", "padding by the edge, not by 0", "padding", padding=1),
    family("dilation", "dilation ignored", "dilation", dilation=2),
    family("groups", "groups of the other side", "groups", groups=2, weight=normal(6, 2, 3, 3)),
    family("depthwise", "a channel for itself", "groups", groups=4, weight=normal(4, 1, 3, 3), padding=1),
    family("kernel-1x1", "a matrix product", "size-1", weight=normal(6, 4, 1, 1)),
    family("kernel-2x5", "kernel height and width swapped", "shape", weight=normal(6, 4, 2, 5)),
    family("one-output", "a kernel as large as the image", "size-1", weight=normal(6, 4, 7, 8, gain=0.1)),
    family(
        "channels-65", "one beyond a tile of 64", "tile", x=normal(1, 65, 4, 4), weight=normal(3, 65, 3, 3, gain=0.1)
    ),
    family(
        "everything",
        "all options at once",
        "shape",
        stride=2,
        padding=2,
        dilation=2,
        groups=2,
        weight=normal(6, 2, 3, 3),
        bias=normal(6),
    ),
    family("large", "sums beyond float16", "magnitude", x=normal(2, 4, 7, 8, gain=1e4), dtypes=FLOATS),
    family(
        "short-mantissa",
        "HF32 inputs: 11 bits show in float32",
        "magnitude",
        x=normal(2, 16, 7, 8, mean=1.0),
        weight=normal(6, 16, 3, 3, gain=0.3),
        dtypes=("float32",),
    ),
    family("empty", "no image", "empty", x=normal(0, 4, 7, 8)),
    family(
        "nan",
        "NaN spoils the windows that see it",
        "nonfinite",
        wrt=(),
        x=normal(2, 4, 7, 8).at((0, 1, 3, 3), math.nan),
    ),
    *family.layouts("x", "weight"),
]

OPERATOR = FORMULA.describe(
    CASES,
    {"torch": call_torch},
    {
        "kernel flipped": FORMULA.change(weight=lambda w: w.flip(-1, -2)),
        "kernel transposed": FORMULA.change(weight=lambda w: w.transpose(-1, -2) if w.shape[-1] == w.shape[-2] else w.flip(-1)),
        "bias forgotten": FORMULA.set(bias=None),
        "stride 1 then cut": FORMULA.edit("top : top + stride * height : stride, left : left + stride * width : stride", "top : top + height, left : left + width"),
        "padding by the edge": FORMULA.edit("torch.nn.functional.pad(x.double(), (padding,) * 4)", "torch.nn.functional.pad(x.double(), (padding,) * 4, mode='replicate')"),
        "padding at the end": FORMULA.edit("(padding,) * 4", "(0, 2 * padding, 0, 2 * padding)"),
        "dilation in one direction": FORMULA.edit("i * dilation, j * dilation", "i * dilation, j"),
        "groups of outputs interleaved": FORMULA.edit("y = y.flatten(1, 2)", "y = y.transpose(1, 2).flatten(1, 2)"),
        "groups of channels interleaved": FORMULA.edit("x = x.unflatten(1, (groups, x.shape[1] // groups))", "x = x.unflatten(1, (x.shape[1] // groups, groups)).transpose(1, 2)"),
        "last kernel row lost": FORMULA.edit("range(w.shape[3])", "range(max(w.shape[3] - 1, 1))"),
        "channels swapped": FORMULA.change(x=lambda x: x.flip(1)),
        "inputs in bfloat16": FORMULA.edit("seen[..., :height, :width]", "seen[..., :height, :width].bfloat16().double()"),
        "inputs in 11 bits": FORMULA.edit("seen[..., :height, :width]", "seen[..., :height, :width].half().double()"),
        "sum in bfloat16": FORMULA.edit("y = y + torch.einsum", "y = y.bfloat16().double() + torch.einsum"),
        "weight without gradient": FORMULA.edit("weight.double()", "weight.double().detach()"),
        "channels beyond a tile of 64 lost": FORMULA.edit("w = torch.nn.functional.pad(x.double(), (padding,) * 4), weight.double()", "w = torch.nn.functional.pad(x.double(), (padding,) * 4), weight.double() * (torch.arange(weight.shape[1]) < 64)[:, None, None]"),
        "bias by position": FORMULA.edit("bias.double()[:, None, None]", "bias.double().flip(0)[:, None, None]"),
    },
)  # fmt: skip
