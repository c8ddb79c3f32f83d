"""Cases for causal_conv1d. Keywords: ``x`` (B, C, T), ``weight`` (C, K), ``bias`` (C,), ``activation``."""

from __future__ import annotations

import math
from typing import Optional

import torch

from precision_align.library.cases import FLOATS
from precision_align.library.drawing import Family, normal
from precision_align.library.formulas import Formula

FORMULA = Formula("causal_conv1d")
Tensor = torch.Tensor
family = Family(x=normal(2, 6, 20), weight=normal(6, 4, gain=0.5), wrt=("x", "weight", "bias"))


def call_torch(x: Tensor, weight: Tensor, bias: Optional[Tensor] = None, *, activation: str = "none") -> Tensor:
    """torch.nn.functional.conv1d with groups, padded on both sides and cut, in float32 and back."""
    wide = x.dtype if x.dtype == torch.float64 else torch.float32
    bias = None if bias is None else bias.to(wide)
    y = torch.nn.functional.conv1d(
        x.to(wide), weight.to(wide)[:, None], bias, padding=weight.shape[1] - 1, groups=x.shape[1]
    )[..., : x.shape[-1]]
    return (torch.nn.functional.silu(y) if activation == "silu" else y).to(x.dtype)


CASES = [
    family("plain", "a kernel that looks ahead", "basic", dtypes=FLOATS),
    family("silu", "the activation forgotten", "activation", activation="silu", bias=normal(6), dtypes=FLOATS),
    family("bias", "the bias after the activation", "bias", bias=normal(6)),
    family("kernel-2", "the shortest kernel", "shape", weight=normal(6, 2)),
    family("kernel-1", "no past at all", "size-1", weight=normal(6, 1)),
    family("shorter-than-kernel", "two steps, a kernel of four", "edge", x=normal(2, 6, 2)),
    family("one-step", "a single step: the last weight", "size-1", x=normal(2, 6, 1)),
    family("length-65", "one beyond a tile of 64", "tile", x=normal(1, 3, 65), weight=normal(3, 4)),
    family("channels-65", "one beyond a tile of 64", "tile", x=normal(1, 65, 5), weight=normal(65, 4)),
    family("large", "sums beyond float16", "magnitude", x=normal(2, 6, 20, gain=3e3), dtypes=FLOATS),
    family("empty", "no batch", "empty", x=normal(0, 6, 20)),
    family("nan", "NaN spoils the K steps after it", "nonfinite", wrt=(), x=normal(2, 6, 20).at((0, 1, 9), math.nan)),
    *family.layouts("x", "weight"),
]

OPERATOR = FORMULA.describe(
    CASES,
    {"torch": call_torch},
    {
        "looks ahead": FORMULA.edit("(w.shape[1] - 1, 0)", "(0, w.shape[1] - 1)"),
        "centred": FORMULA.edit("(w.shape[1] - 1, 0)", "(w.shape[1] - 1 - (w.shape[1] - 1) // 2, (w.shape[1] - 1) // 2)"),
        "kernel flipped": FORMULA.change(weight=lambda w: w.flip(1)),
        "channels mixed": FORMULA.change(weight=lambda w: w.roll(1, 0)),
        "silu forgotten": FORMULA.set(activation="none"),
        "silu always": FORMULA.set(activation="silu"),
        "bias after the activation": FORMULA.edit("y = y if bias is None else y + bias.double()[:, None]", "y = y + 0", 'if activation == "silu" else y', 'if activation == "silu" and bias is None else (y * torch.sigmoid(y) if activation == "silu" else y) + (0 if bias is None else bias.double()[:, None])'),
        "bias forgotten": FORMULA.set(bias=None),
        "start padded by the first value": FORMULA.edit("torch.nn.functional.pad(x, (w.shape[1] - 1, 0))", "torch.cat([x[..., :1].expand(-1, -1, w.shape[1] - 1), x], -1)"),
        "first weight lost": FORMULA.edit("for k in range(w.shape[1])", "for k in range(1 if w.shape[1] > 1 else 0, w.shape[1])"),
        "last weight lost": FORMULA.edit("for k in range(w.shape[1])", "for k in range(w.shape[1] - 1)"),
        "products in bfloat16": FORMULA.edit("* w[:, k, None] for", "* w[:, k, None].bfloat16().double() * 1.001 for"),
        "weight without gradient": FORMULA.edit("weight.double()", "weight.double().detach()"),
    },
)  # fmt: skip
