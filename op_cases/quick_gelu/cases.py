"""Cases for QuickGELU (CLIP; npu_fast_gelu). Keyword: ``x``."""

from __future__ import annotations

import math

import torch

from precision_align.library.cases import FLOATS
from precision_align.library.drawing import Family, normal, uniform
from precision_align.library.formulas import Formula, load_torch_npu

FORMULA = Formula("quick_gelu")
family = Family(x=normal(6, 96, gain=2.0), wrt=("x",))


def call_torch(x: torch.Tensor) -> torch.Tensor:
    """silu(1.702 x) / 1.702 in float32 and back."""
    wide = x if x.dtype == torch.float64 else x.float()
    return (torch.nn.functional.silu(1.702 * wide) / 1.702).to(x.dtype)


def call_torch_npu(x: torch.Tensor) -> torch.Tensor:
    """torch_npu.npu_fast_gelu: this form on A2 and A3, another closed form on older Atlas."""
    return load_torch_npu().npu_fast_gelu(x)  # type: ignore[no-any-return]


CASES = [
    family("plain", "another gelu", "basic", dtypes=FLOATS),
    family("large", "the gate saturates", "magnitude", x=normal(6, 64, gain=1e4), dtypes=FLOATS),
    family("negative", "below -8 the gate is tiny, not zero", "magnitude", x=uniform(6, 64, low=-12, high=-4)),
    family("small", "near zero it is x / 2", "magnitude", x=normal(6, 64, gain=1e-4)),
    family("zero-row", "0 gives 0, its gradient is one half", "rows", x=normal(6, 64).at(3, 0.0)),
    family("odd-size", "one beyond a vector of 64", "tile", x=normal(5, 65)),
    family("size-1", "a single value", "size-1", x=normal(1)),
    family("scalar", "no dimension", "0-d", x=normal()),
    family("empty", "nothing", "empty", x=normal(3, 0)),
    family("nonfinite", "NaN stays, inf stays", "nonfinite", wrt=(),
           x=normal(4, 33).at((0, 1), math.nan).at((1, 2), math.inf)),
    *family.layouts("x"),
]  # fmt: skip

OPERATOR = FORMULA.describe(
    CASES,
    {"torch": call_torch, "torch_npu": call_torch_npu},
    {
        "silu": FORMULA.edit("1.702 * x", "x"),
        "coefficient 1.7": FORMULA.edit("1.702 * x", "1.7 * x"),
        "erf form": FORMULA.edit("x * torch.sigmoid(1.702 * x)", "torch.nn.functional.gelu(x)"),
        "tanh form": FORMULA.edit("x * torch.sigmoid(1.702 * x)", 'torch.nn.functional.gelu(x, approximate="tanh")'),
        "gate in bfloat16": FORMULA.edit("torch.sigmoid(1.702 * x)", "torch.sigmoid((1.702 * x).bfloat16()).float()"),
        "hard sigmoid": FORMULA.edit("torch.sigmoid(1.702 * x)", "torch.nn.functional.hardsigmoid(1.702 * x)"),
        "gate of |x|": FORMULA.edit("torch.sigmoid(1.702 * x)", "torch.sigmoid(1.702 * x.abs())"),
        "zero below -8": FORMULA.after(lambda y: y.masked_fill(y.abs() < 1e-5, 0)),
        "gate without gradient": FORMULA.edit("torch.sigmoid(1.702 * x)", "torch.sigmoid(1.702 * x.detach())"),
    },
)
