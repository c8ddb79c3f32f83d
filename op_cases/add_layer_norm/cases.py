"""Cases for residual + LayerNorm. Keywords: ``x``, ``residual`` (..., C), ``weight``, ``bias`` (C,), ``eps``."""

from __future__ import annotations

import math

import torch

from precision_align.library.cases import FLOATS
from precision_align.library.drawing import Family, normal
from precision_align.library.formulas import Formula, load_torch_npu

FORMULA = Formula("add_layer_norm")
Pair = tuple[torch.Tensor, torch.Tensor]


def sized(*shape: int, gain: float = 1.0, mean: float = 0.0) -> dict[str, object]:
    return {
        "x": normal(*shape, gain=gain, mean=mean),
        "residual": normal(*shape, gain=gain),
        "weight": normal(shape[-1], mean=1.0, gain=0.2),
        "bias": normal(shape[-1], gain=0.3),
    }


family = Family(wrt=("x", "residual", "weight", "bias"), **sized(4, 8, 64))


def call_torch(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, *, eps: float = 1e-5
) -> Pair:
    """torch.nn.functional.layer_norm of the rounded sum, in float32 and back."""
    total = x + residual
    wide = total.dtype if x.dtype == torch.float64 else torch.float32
    y = torch.nn.functional.layer_norm(total.to(wide), x.shape[-1:], weight.to(wide), bias.to(wide), eps)
    return y.to(x.dtype), total


def call_torch_npu(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, *, eps: float = 1e-5
) -> Pair:
    """torch_npu.npu_add_layer_norm(x1, x2, gamma, beta, epsilon, additional_output) -> (y, mean, rstd, x)."""
    y, _, _, total = load_torch_npu().npu_add_layer_norm(x, residual, weight, bias, eps, True)
    return y, total


CASES = [
    family("plain", "the residual forgotten", "basic", dtypes=FLOATS),
    family("small-rows", "eps 1e-6 for 1e-5", "eps", **sized(4, 8, 64, gain=2e-3)),
    family("large-eps", "eps ignored", "eps", eps=0.1),
    family("mean-30", "a one-pass variance cancels", "magnitude", **sized(4, 8, 64, mean=30.0)),
    family("large", "the square overflows float16", "magnitude", dtypes=FLOATS, **sized(4, 8, 64, gain=300.0)),
    family("row-65", "one beyond a tile of 64", "tile", **sized(4, 8, 65)),
    family("row-20", "not a multiple of 16", "tile", **sized(4, 8, 20)),
    family("row-1", "one channel: the bias", "size-1", **sized(40, 1)),
    family("wide-4096", "a short accumulator", "accumulation", **sized(3, 4096)),
    family("empty", "no row", "empty", **sized(0, 16)),
    family("nan", "NaN spoils its row only", "nonfinite", wrt=(), x=normal(4, 8, 64).at((0, 1, 3), math.nan)),
    *family.layouts("x", "residual"),
]

OPERATOR = FORMULA.describe(
    CASES,
    {"torch": call_torch, "torch_npu": call_torch_npu},
    {
        "residual forgotten": FORMULA.edit("x.double() + residual.double()", "x.double() + 0 * residual.double()"),
        "second result is x": FORMULA.edit("bias.double(), total", "bias.double(), x.double()"),
        "eps 1e-6 always": FORMULA.set(eps=1e-6),
        "eps ignored": FORMULA.set(eps=0.0),
        "eps outside the root": FORMULA.edit("torch.sqrt(variance + eps)", "(torch.sqrt(variance) + eps)"),
        "variance divided by n - 1": FORMULA.edit("centred.square().mean(dim=-1, keepdim=True)", "centred.square().sum(dim=-1, keepdim=True) / max(x.shape[-1] - 1, 1)"),
        "mean not subtracted": FORMULA.edit("total - total.mean(dim=-1, keepdim=True)", "total"),
        "one-pass variance in bfloat16": FORMULA.edit("centred.square().mean(dim=-1, keepdim=True)", "total.square().bfloat16().mean(dim=-1, keepdim=True).float() - total.mean(dim=-1, keepdim=True).square()"),
        "mean of x only": FORMULA.edit("total.mean(dim=-1, keepdim=True)", "x.double().mean(dim=-1, keepdim=True)"),
        "bias forgotten": FORMULA.edit("+ bias.double()", "+ 0 * bias.double()"),
        "bias before the weight": FORMULA.edit("* weight.double() + bias.double()", "* weight.double() + bias.double() * weight.double()"),
        "statistics of whole tiles of 16": FORMULA.edit("centred.square()", "centred[..., : max(x.shape[-1] // 16 * 16, 1)].square()"),
        "squares in float16": FORMULA.edit("centred.square()", "centred.half().square().float()"),
        "variance without gradient": FORMULA.edit("torch.sqrt(variance + eps)", "torch.sqrt(variance.detach() + eps)"),
    },
    natives=[call_torch],  # the sum rounded before it is normalised
)  # fmt: skip
