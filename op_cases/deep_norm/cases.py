"""Cases for DeepNorm. Keywords: ``x``, ``gx`` (..., C), ``weight``, ``bias`` (C,), ``alpha``, ``eps``."""

from __future__ import annotations

import math

import torch

from precision_align.library.cases import FLOATS
from precision_align.library.drawing import Family, normal
from precision_align.library.formulas import Formula, load_torch_npu

FORMULA = Formula("deep_norm")
Tensor = torch.Tensor


def sized(*shape: int, gain: float = 1.0, mean: float = 0.0) -> dict[str, object]:
    return {
        "x": normal(*shape, gain=gain, mean=mean),
        "gx": normal(*shape, gain=gain),
        "weight": normal(shape[-1], mean=1.0, gain=0.2),
        "bias": normal(shape[-1], gain=0.3),
    }


family = Family(wrt=("x", "gx", "weight", "bias"), **sized(4, 8, 64))


def call_torch(x: Tensor, gx: Tensor, weight: Tensor, bias: Tensor, *, alpha: float = 0.3, eps: float = 1e-6) -> Tensor:
    """torch.nn.functional.layer_norm(torch.add(gx, x, alpha=alpha)) in float32 and back."""
    wide = x.dtype if x.dtype == torch.float64 else torch.float32
    total = torch.add(gx.to(wide), x.to(wide), alpha=alpha)
    return torch.nn.functional.layer_norm(total, x.shape[-1:], weight.to(wide), bias.to(wide), eps).to(x.dtype)


def call_torch_npu(
    x: Tensor, gx: Tensor, weight: Tensor, bias: Tensor, *, alpha: float = 0.3, eps: float = 1e-6
) -> Tensor:
    """torch_npu.npu_deep_norm(x, gx, beta, gamma, alpha, epsilon) -> (mean, rstd, y): beta comes before gamma."""
    return load_torch_npu().npu_deep_norm(x, gx, bias, weight, alpha, eps)[2]  # type: ignore[no-any-return]


CASES = [
    family("plain", "weight and bias swapped, alpha on the wrong one", "basic", dtypes=FLOATS),
    family("alpha-1", "alpha ignored", "scale", alpha=1.0),
    family("alpha-2.5", "alpha of the paper for 18 layers", "scale", alpha=2.5),
    family("small-rows", "eps 1e-5 for 1e-6", "eps", **sized(4, 8, 64, gain=8e-4)),
    family("large-eps", "eps ignored", "eps", eps=0.1),
    family("mean-30", "a one-pass variance cancels", "magnitude", **sized(4, 8, 64, mean=30.0)),
    family("row-65", "one beyond a tile of 64", "tile", **sized(4, 8, 65)),
    family("row-1", "one channel: the bias", "size-1", **sized(40, 1)),
    family("wide-2048", "a short accumulator", "accumulation", **sized(3, 2048)),
    family("empty", "no row", "empty", **sized(0, 16)),
    family("nan", "NaN spoils its row only", "nonfinite", wrt=(), x=normal(4, 8, 64).at((0, 1, 3), math.nan)),
    *family.layouts("x", "gx"),
]

OPERATOR = FORMULA.describe(
    CASES,
    {"torch": call_torch, "torch_npu": call_torch_npu},
    {
        "alpha on gx": FORMULA.edit("alpha * x.double() + gx.double()", "x.double() + alpha * gx.double()"),
        "alpha 0.3 always": FORMULA.set(alpha=0.3),
        "alpha ignored": FORMULA.set(alpha=1.0),
        "weight and bias swapped": FORMULA.edit("* weight.double() + bias.double()", "* bias.double() + weight.double()"),
        "eps 1e-5 always": FORMULA.set(eps=1e-5),
        "eps ignored": FORMULA.set(eps=0.0),
        "variance divided by n - 1": FORMULA.edit("centred.square().mean(dim=-1, keepdim=True)", "centred.square().sum(dim=-1, keepdim=True) / max(x.shape[-1] - 1, 1)"),
        "mean not subtracted": FORMULA.edit("total - total.mean(dim=-1, keepdim=True)", "total"),
        "alpha after the norm": FORMULA.edit("centred / torch", "alpha * centred / torch"),
        "statistics of whole tiles of 64": FORMULA.edit("centred.square()", "centred[..., : max(x.shape[-1] // 64 * 64, 1)].square()"),
        "variance without gradient": FORMULA.edit("torch.sqrt(variance + eps)", "torch.sqrt(variance.detach() + eps)"),
    },
)  # fmt: skip
