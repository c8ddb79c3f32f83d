"""Cases for conv3d. Keywords: ``x`` (N, C, D, H, W), ``weight`` (O, C, kd, kh, kw), ``bias``, ``stride``, ``padding``."""

from __future__ import annotations

import math
from typing import Any, Optional

import torch

from precision_align.library.cases import FLOATS
from precision_align.library.drawing import Family, normal
from precision_align.library.formulas import Formula

FORMULA = Formula("conv3d")
Tensor = torch.Tensor
family = Family(x=normal(2, 3, 4, 5, 6), weight=normal(4, 3, 2, 3, 2, gain=0.3), wrt=("x", "weight", "bias"))


def call_torch(x: Tensor, weight: Tensor, bias: Optional[Tensor] = None, **options: Any) -> Tensor:
    """torch.nn.functional.conv3d in float32 and back. Module.to("npu") rounds such weights through float16 off 910B."""
    wide = x.dtype if x.dtype == torch.float64 else torch.float32
    bias = None if bias is None else bias.to(wide)
    return torch.nn.functional.conv3d(x.to(wide), weight.to(wide), bias, **options).to(x.dtype)


CASES = [
    family("plain", "kernel dimensions swapped", "basic", dtypes=FLOATS),
    family("bias", "the bias forgotten", "bias", bias=normal(4)),
    family("stride-2", "stride ignored", "stride", stride=2),
    family("padding", "padding ignored", "padding", padding=1),
    family("kernel-1", "a matrix product", "size-1", weight=normal(4, 3, 1, 1, 1)),
    family(
        "patch",
        "stride as large as the kernel: a patch embedding",
        "shape",
        x=normal(1, 3, 2, 4, 4),
        weight=normal(5, 3, 2, 2, 2),
        stride=2,
    ),
    family("one-output", "a kernel as large as the volume", "size-1", weight=normal(4, 3, 4, 5, 6, gain=0.1)),
    family(
        "weights-beyond-float16",
        "weights of 1e-6: rounded through float16 they lose digits",
        "magnitude",
        weight=normal(4, 3, 2, 3, 2, gain=1e-6),
        dtypes=("float32",),
    ),
    family(
        "channels-65",
        "one beyond a tile of 64",
        "tile",
        x=normal(1, 65, 2, 2, 2),
        weight=normal(2, 65, 2, 2, 2, gain=0.1),
    ),
    family("large", "sums beyond float16", "magnitude", x=normal(2, 3, 4, 5, 6, gain=1e4)),
    family("empty", "no volume", "empty", x=normal(0, 3, 4, 5, 6)),
    family(
        "nan",
        "NaN spoils the windows that see it",
        "nonfinite",
        wrt=(),
        x=normal(2, 3, 4, 5, 6).at((0, 1, 2, 2, 2), math.nan),
    ),
    *family.layouts("x", "weight"),
]

OPERATOR = FORMULA.describe(
    CASES,
    {"torch": call_torch},
    {
        "kernel flipped": FORMULA.change(weight=lambda w: w.flip(2, 3, 4) if w[0, 0].numel() > 1 else w.flip(1)),
        "depth last": FORMULA.change(weight=lambda w: w.flip(2)),
        "width flipped": FORMULA.change(weight=lambda w: w.flip(4)),
        "bias forgotten": FORMULA.set(bias=None),
        "padding by the edge": FORMULA.edit("(padding,) * 6)", "(padding,) * 6, mode='replicate')"),
        "padding at the end": FORMULA.edit("(padding,) * 6", "(0, 2 * padding) * 3"),
        "stride from the end": FORMULA.edit("y = torch.einsum", "windows = windows.flip(2) if stride > 1 else windows\n    y = torch.einsum"),
        "channels swapped": FORMULA.change(x=lambda x: x.flip(1)),
        "weights through float16": FORMULA.edit("weight.double()", "weight.half().double()"),
        "inputs in 11 bits": FORMULA.edit("windows, w)", "windows.half().double(), w)"),
        "last kernel slice lost": FORMULA.edit("windows, w)", "windows, w * (torch.arange(w.shape[2]) < max(w.shape[2] - 1, 1))[:, None, None])"),
        "weight without gradient": FORMULA.edit("weight.double()", "weight.double().detach()"),
        "channels beyond a tile of 64 lost": FORMULA.edit("windows, w)", "windows, w * (torch.arange(w.shape[1]) < 64)[:, None, None, None])"),
    },
)  # fmt: skip
