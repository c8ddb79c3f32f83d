"""Cases for conv_transpose2d. Keywords: ``x`` (N, C, H, W), ``weight`` (C, O / groups, kh, kw), ``bias``, ``stride``,
``padding``, ``output_padding``, ``dilation``, ``groups``."""

from __future__ import annotations

import math
from typing import Any, Optional

import torch

from precision_align.library.cases import FLOATS
from precision_align.library.drawing import Family, normal
from precision_align.library.formulas import Formula

FORMULA = Formula("conv_transpose2d")
Tensor = torch.Tensor
family = Family(x=normal(2, 4, 4, 5), weight=normal(4, 6, 3, 3, gain=0.3), wrt=("x", "weight", "bias"))


def call_torch(x: Tensor, weight: Tensor, bias: Optional[Tensor] = None, **options: Any) -> Tensor:
    """torch.nn.functional.conv_transpose2d in float32 and back."""
    wide = x.dtype if x.dtype == torch.float64 else torch.float32
    bias = None if bias is None else bias.to(wide)
    return torch.nn.functional.conv_transpose2d(x.to(wide), weight.to(wide), bias, **options).to(x.dtype)


CASES = [
    family("plain", "a flipped kernel", "basic", dtypes=FLOATS),
    family("bias", "the bias forgotten", "bias", bias=normal(6), dtypes=FLOATS),
    family("stride-2", "stride ignored", "stride", stride=2),
    family("stride-3-output-padding", "the output one too small", "stride", stride=3, output_padding=2),
    family("padding", "padding added, not cut", "padding", padding=1),
    family("dilation", "dilation ignored", "dilation", dilation=2),
    family("groups", "groups of the other side", "groups", groups=2, weight=normal(4, 3, 3, 3)),
    family("depthwise", "a channel for itself", "groups", groups=4, weight=normal(4, 1, 3, 3)),
    family("kernel-1x1", "a matrix product", "size-1", weight=normal(4, 6, 1, 1)),
    family("kernel-2x4", "kernel height and width swapped", "shape", weight=normal(4, 6, 2, 4), stride=2),
    family("one-pixel", "a single pixel: the kernel", "size-1", x=normal(2, 4, 1, 1)),
    family(
        "channels-65", "one beyond a tile of 64", "tile", x=normal(1, 65, 3, 3), weight=normal(65, 3, 2, 2, gain=0.1)
    ),
    family(
        "everything",
        "all options at once",
        "shape",
        stride=3,
        padding=2,
        dilation=2,
        groups=2,
        output_padding=1,
        weight=normal(4, 3, 3, 3),
        bias=normal(6),
    ),
    family("large", "sums beyond float16", "magnitude", x=normal(2, 4, 4, 5, gain=1e4)),
    family(
        "nan", "NaN spoils what it spreads to", "nonfinite", wrt=(), x=normal(2, 4, 4, 5).at((0, 1, 2, 2), math.nan)
    ),
    *family.layouts("x", "weight"),
]

OPERATOR = FORMULA.describe(
    CASES,
    {"torch": call_torch},
    {
        "kernel flipped": FORMULA.change(weight=lambda w: w.flip(-1, -2)),
        "kernel transposed": FORMULA.change(weight=lambda w: w.transpose(-1, -2) if w.shape[-1] == w.shape[-2] else w.flip(-1)),
        "weight as (O, C)": FORMULA.edit("w = w.unflatten(0, (groups, w.shape[0] // groups))", "w = w.unflatten(0, (groups, w.shape[0] // groups))\n    w = w.flip(2)"),
        "bias forgotten": FORMULA.set(bias=None),
        "padding forgotten where it is 1": FORMULA.edit("y[:, :, padding : rows - padding, padding : columns - padding]", "y.roll(-1 if padding else 0, -1)[:, :, padding : rows - padding, padding : columns - padding]"),
        "groups of outputs interleaved": FORMULA.edit(".sum(dim=0).flatten(1, 2)", ".sum(dim=0).transpose(1, 2).flatten(1, 2)"),
        "groups of channels interleaved": FORMULA.edit("x = x.unflatten(1, (groups, x.shape[1] // groups))", "x = x.unflatten(1, (x.shape[1] // groups, groups)).transpose(1, 2)"),
        "last kernel column lost": FORMULA.edit("range(w.shape[4])", "range(max(w.shape[4] - 1, 1))"),
        "overlaps overwritten": FORMULA.edit(".sum(dim=0).flatten", ".amax(dim=0).flatten"),
        "dilation in one direction": FORMULA.edit("j * dilation, i * dilation", "j, i * dilation"),
        "output padding in front": FORMULA.edit("y[:, :, padding", "y.roll((output_padding, output_padding), (2, 3))[:, :, padding"),
        "products in bfloat16": FORMULA.edit("pieces.append(torch.nn.functional.pad(tall", "pieces.append(torch.nn.functional.pad(tall.bfloat16().double()"),
        "inputs in 11 bits": FORMULA.edit("x.double(), weight.double()", "x.half().double(), weight.double()"),
        "weight without gradient": FORMULA.edit("weight.double()", "weight.double().detach()"),
        "stride in one direction": FORMULA.edit("torch.arange(width, device=x.device) * stride", "torch.arange(width, device=x.device)"),
        "channels swapped": FORMULA.change(x=lambda x: x.flip(1)),
    },
)  # fmt: skip
