"""Cases for residual + RMSNorm. Keywords: ``x``, ``residual`` (..., C), ``weight`` (C,), ``eps``. Results: norm, sum."""

from __future__ import annotations

import math

import torch

from precision_align.library.cases import FLOATS
from precision_align.library.drawing import Family, normal
from precision_align.library.formulas import Formula, load_torch_npu

FORMULA = Formula("add_rms_norm")
WEIGHT = {"mean": 1.0, "gain": 0.2}
family = Family(
    x=normal(4, 8, 64), residual=normal(4, 8, 64), weight=normal(64, **WEIGHT), wrt=("x", "residual", "weight")
)
Pair = tuple[torch.Tensor, torch.Tensor]


def call_torch(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, *, eps: float = 1e-6) -> Pair:
    """x + residual, then rsqrt of the squared norm over C, in float32; the sum is rounded first, as vllm's is."""
    total = x + residual
    wide = total if x.dtype == torch.float64 else total.float()
    scale = torch.rsqrt(torch.einsum("...c,...c->...", wide, wide)[..., None] / x.shape[-1] + eps)
    return (wide * scale * weight.to(wide.dtype)).to(x.dtype), total


def call_torch_npu(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, *, eps: float = 1e-6) -> Pair:
    """torch_npu.npu_add_rms_norm(x1, x2, gamma, epsilon) -> (y, rstd, x): the sum is the last one."""
    y, _, total = load_torch_npu().npu_add_rms_norm(x, residual, weight, eps)
    return y, total


def sized(*shape: int, gain: float = 1.0) -> dict[str, object]:
    return {
        "x": normal(*shape, gain=gain),
        "residual": normal(*shape, gain=gain),
        "weight": normal(shape[-1], **WEIGHT),
    }


CASES = [
    family("plain", "the residual forgotten in either result", "basic", dtypes=FLOATS),
    family("small-rows", "eps 1e-5 for 1e-6", "eps", **sized(4, 8, 64, gain=7e-4)),
    family("large-eps", "eps ignored", "eps", eps=0.1),
    family("opposite", "x = -residual but for a little: the sum cancels", "magnitude", residual=normal(4, 8, 64, gain=1e-3),
           x=normal(4, 8, 64, gain=1e-3)),
    family("large", "the square overflows float16", "magnitude", dtypes=FLOATS, **sized(4, 8, 64, gain=300.0)),
    family("row-65", "one beyond a tile of 64", "tile", **sized(4, 8, 65)),
    family("row-20", "not a multiple of 16", "tile", **sized(4, 8, 20)),
    family("row-1", "one channel", "size-1", **sized(40, 1)),
    family("wide-4096", "a short accumulator", "accumulation", **sized(3, 4096)),
    family("zero-rows", "rows whose sum is zero", "rows", eps=1e-3, x=normal(4, 8, 64).at((slice(None), 2), 0.0),
           residual=normal(4, 8, 64).at((slice(None), 2), 0.0)),
    family("empty", "no row", "empty", **sized(0, 16)),
    family("nonfinite", "NaN and infinity spoil their rows only", "nonfinite", wrt=(),
           x=normal(4, 8, 64).at((0, 1, 3), math.nan).at((0, 2, 4), math.inf)),
    *family.layouts("x", "residual"),
]  # fmt: skip

OPERATOR = FORMULA.describe(
    CASES,
    {"torch": call_torch, "torch_npu": call_torch_npu},
    {
        "residual forgotten": FORMULA.edit("x.double() + residual.double()", "x.double() + 0 * residual.double()"),
        "residual subtracted": FORMULA.edit("+ residual", "- residual"),
        "sum is x": FORMULA.after(lambda y: (y[0], y[0])),
        "second result is the norm's input x": FORMULA.edit("weight.double(), total", "weight.double(), x.double()"),
        "eps 1e-5 always": FORMULA.set(eps=1e-5),
        "eps ignored": FORMULA.set(eps=0.0),
        "eps outside the root": FORMULA.edit("torch.sqrt(mean_square + eps)", "(torch.sqrt(mean_square) + eps)"),
        "sum for mean": FORMULA.edit(".mean(", ".sum("),
        "mean of x only": FORMULA.edit("total.square()", "x.double().square()"),
        "weight ignored": FORMULA.edit(" * weight.double()", " * (0 * weight.double() + 1)"),
        "1 + weight": FORMULA.edit("weight.double()", "(1 + weight.double())"),
        "squares in float16": FORMULA.edit("total.square()", "total.half().square().float()"),
        "statistics of whole tiles of 16": FORMULA.edit("total.square()", "total[..., : max(total.shape[-1] // 16 * 16, 1)].square()"),
        "no gradient through the sum": FORMULA.edit("weight.double(), total", "weight.double(), total.detach()"),
    },
    natives=[call_torch],  # the sum rounded before it is normalised: vllm's and transformers' way
)  # fmt: skip
