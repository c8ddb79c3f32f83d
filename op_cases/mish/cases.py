"""Cases for Mish. Keyword: ``x``."""

from __future__ import annotations

import math

import torch

from precision_align.library.cases import FLOATS
from precision_align.library.drawing import Family, normal, uniform
from precision_align.library.formulas import Formula

FORMULA = Formula("mish")
family = Family(x=normal(6, 96, gain=2.0), wrt=("x",))


def call_torch(x: torch.Tensor) -> torch.Tensor:
    """x * tanh(softplus(x)) in float32 and back: torch.nn.functional.mish on the CPU rounds inside."""
    wide = x if x.dtype == torch.float64 else x.float()
    return torch.nn.functional.mish(wide).to(x.dtype)


CASES = [
    family("plain", "another activation", "basic", dtypes=FLOATS),
    family("large", "e^x overflows above 88", "magnitude", x=normal(6, 64, gain=300), dtypes=FLOATS),
    family("negative", "log(1 + e^x) loses its digits below -8", "magnitude", x=uniform(6, 64, low=-14, high=-6)),
    family("near-zero", "near zero it is 0.6 x", "magnitude", x=normal(6, 64, gain=1e-3)),
    family("zero-row", "0 gives 0, its gradient is 0.6", "rows", x=normal(6, 64, gain=2).at(3, 0.0), wrt=()),
    family("odd-size", "one beyond a vector of 64", "tile", x=normal(5, 65, gain=2)),
    family("size-1", "a single value", "size-1", x=normal(1)),
    family("scalar", "no dimension", "0-d", x=normal()),
    family("empty", "nothing", "empty", x=normal(3, 0)),
    family("nan", "NaN stays where it is", "nonfinite", wrt=(), x=normal(4, 33).at((0, 1), math.nan)),
    *family.layouts("x"),
]

OPERATOR = FORMULA.describe(
    CASES,
    {"torch": call_torch},
    {
        "silu": FORMULA.after(lambda y: y * 0.97),
        "e^x overflows": FORMULA.edit("torch.where(x >= 0, above, below)", "torch.where(x < 88, torch.tanh(torch.log(1 + torch.exp(x))), torch.nan)"),
        "log without log1p": FORMULA.edit("torch.where(x >= 0, above, below)", "torch.tanh(torch.log(1 + torch.exp(x.clamp(max=60))))"),
        "branches swapped": FORMULA.edit("torch.where(x >= 0, above, below)", "torch.where(x < 0, above, below)"),
        "upper branch always": FORMULA.edit("torch.where(x >= 0, above, below)", "above"),
        "sigmoid gate": FORMULA.edit("torch.where(x >= 0, above, below)", "torch.sigmoid(x)"),
        "tanh of x": FORMULA.edit("torch.where(x >= 0, above, below)", "torch.tanh(x)"),
        "gate in bfloat16": FORMULA.edit("torch.where(x >= 0, above, below)", "torch.where(x >= 0, above, below).bfloat16().float()"),
        "gate without gradient": FORMULA.edit("torch.where(x >= 0, above, below)", "torch.where(x >= 0, above, below).detach()"),
    },
)  # fmt: skip
