"""Cases for Megatron's bias + GELU. Keywords: ``x`` (..., C), ``bias`` (C,)."""

from __future__ import annotations

import math

import torch

from precision_align.library.cases import FLOATS
from precision_align.library.drawing import Family, normal, uniform
from precision_align.library.formulas import Formula

FORMULA = Formula("bias_gelu")
family = Family(x=normal(5, 6, 48), bias=normal(48, gain=0.5), wrt=("x", "bias"))


def call_torch(x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """torch.nn.functional.gelu(x + bias, approximate="tanh") in float32 and back."""
    wide = x.dtype if x.dtype == torch.float64 else torch.float32
    return torch.nn.functional.gelu(x.to(wide) + bias.to(wide), approximate="tanh").to(x.dtype)


def call_sigmoid(x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """y sigmoid(2 a): a second formula with the same constant, for the golden function's test."""
    y = x + bias
    return y * torch.sigmoid(2 * 0.79788456 * (y + 0.044715 * y**3))


CASES = [
    family("plain", "the bias forgotten", "basic", dtypes=FLOATS),
    family(
        "forms-apart",
        "the erf form: 4.7e-4 away near -2.7",
        "form",
        x=uniform(5, 48, low=-3.2, high=-2.2),
        bias=normal(48, gain=0.1),
    ),
    family("large", "y^2 overflows float16", "magnitude", x=normal(5, 48, gain=500.0), dtypes=FLOATS),
    family(
        "opposite",
        "x + bias cancels",
        "magnitude",
        x=normal(5, 48, gain=1e-2, mean=4.0),
        bias=normal(48, gain=1e-2, mean=-4.0),
    ),
    family("zero-bias", "a bias of zero", "rows", bias=normal(48).then(torch.zeros_like), wrt=("x",)),
    family("row-65", "one beyond a vector of 64", "tile", x=normal(5, 65), bias=normal(65)),
    family("channels-1", "one channel", "size-1", x=normal(70, 1), bias=normal(1)),
    family("one-row", "a single row", "size-1", x=normal(1, 48)),
    family("empty", "no row", "empty", x=normal(0, 48)),
    family("nan", "NaN spoils one value", "nonfinite", wrt=(), x=normal(5, 48).at((1, 4), math.nan)),
    *family.layouts("x"),
]

OPERATOR = FORMULA.describe(
    CASES,
    {"torch": call_torch},
    {
        "bias forgotten": FORMULA.edit("+ bias.double()", "+ 0 * bias.double()"),
        "bias after": FORMULA.edit("x.double() + bias.double()", "x.double()", "y * y)))", "y * y))) + bias.double()"),
        "bias subtracted": FORMULA.edit("+ bias", "- bias"),
        "erf form": FORMULA.edit("0.5 * y * (1 + torch.tanh(0.79788456 * y * (1 + 0.044715 * y * y)))", "torch.nn.functional.gelu(y)"),
        "quick form": FORMULA.edit("0.5 * y * (1 + torch.tanh(0.79788456 * y * (1 + 0.044715 * y * y)))", "y * torch.sigmoid(1.702 * y)"),
        "half forgotten": FORMULA.edit("0.5 * y", "y"),
        "square in float16": FORMULA.edit("0.044715 * y * y", "0.044715 * (y.half() * y.half()).float()"),
        "cubic term forgotten": FORMULA.edit("(1 + 0.044715 * y * y)", "1"),
        "bias by row": FORMULA.edit("bias.double()", "bias.double().flip(0)"),
        "no gradient of the bias": FORMULA.edit("bias.double()", "bias.double().detach()"),
        "sum rounded to bfloat16": FORMULA.edit("x.double() + bias.double()", "(x.double() + bias.double()).bfloat16().float()"),
    },
    independent=call_sigmoid,
)  # fmt: skip
