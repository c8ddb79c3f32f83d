"""Cases for dynamic quantisation. Keywords: ``x`` (..., C), ``smooth`` (C,) or None, ``bits``. Results: int8, scale in
float32."""

from __future__ import annotations

from typing import Optional

import torch

from precision_align.library.cases import FLOATS
from precision_align.library.drawing import Family, fixed, normal, uniform
from precision_align.library.formulas import Formula, load_torch_npu

FORMULA = Formula("dynamic_quantize", keep=(1,))
Tensor = torch.Tensor
family = Family(x=normal(9, 24))


def call_torch(x: Tensor, smooth: Optional[Tensor] = None, *, bits: int = 8) -> tuple[Tensor, Tensor]:
    """aminmax by row, in float32."""
    wide = x.dtype if x.dtype == torch.float64 else torch.float32
    y = x.to(wide) if smooth is None else torch.mul(x.to(wide), smooth.to(wide))
    low, high = torch.aminmax(y, dim=-1)
    scale = torch.maximum(-low, high) / (2 ** (bits - 1) - 1)
    steps = torch.nan_to_num(y / scale[..., None], nan=0.0).round()
    return steps.to(torch.int8), scale


def call_torch_npu(x: Tensor, smooth: Optional[Tensor] = None, *, bits: int = 8) -> tuple[Tensor, Tensor]:
    """torch_npu.npu_dynamic_quant(x, smooth_scales=...): float16 and bfloat16 only."""
    if bits != 8:
        return call_torch(x, smooth, bits=bits)
    q, scale = load_torch_npu().npu_dynamic_quant(x, smooth_scales=smooth)
    return q, scale


CASES = [
    family("plain", "a scale for the whole tensor", "basic", dtypes=FLOATS),
    family("smooth", "the factors divide", "smooth", smooth=uniform(24, low=0.2, high=3.0), dtypes=FLOATS),
    family("int4", "127 for 7", "bits", bits=4),
    family(
        "outlier",
        "one value 300 times the others: the rest is 0",
        "magnitude",
        x=normal(9, 24).at((slice(None), 3), 300.0),
    ),
    family(
        "negative-maximum", "the maximum without its absolute value", "sign", x=normal(9, 24).at((slice(None), 5), -9.0)
    ),
    family("zero-row", "zeros and a scale of 0, no NaN", "rows", x=normal(9, 24).at(2, 0.0)),
    family(
        "ties",
        "halves to even: the maximum is 127 or 63.5",
        "ties",
        x=fixed([[127.0, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 63.5], [63.5, 0.25, 0.75, 1.25, -0.25, -0.75, -1.25, 1.0]]),
        exact=True,
    ),
    family("large", "values near the end of float16", "magnitude", x=normal(9, 24, gain=1e4), dtypes=FLOATS),
    family("tiny", "a scale that is subnormal in float16", "magnitude", x=normal(9, 24, gain=1e-5)),
    family("three-dimensions", "tokens in two dimensions", "shape", x=normal(2, 5, 24)),
    family("odd-65", "one beyond a tile of 64", "tile", x=normal(3, 65).at((slice(None), 64), 7.0)),
    family("one-channel", "a single value: 127 or -127", "size-1", x=normal(30, 1)),
    family("empty", "no token", "empty", x=normal(0, 24)),
    *family.layouts("x"),
]

OPERATOR = FORMULA.describe(
    CASES,
    {"torch": call_torch, "torch_npu": call_torch_npu},
    {
        "one scale for all": FORMULA.edit("y.abs().amax(dim=-1)", "(0 * y.abs().amax(dim=-1) + (y.abs().amax() if y.numel() else 0))"),
        "maximum without abs": FORMULA.edit("y.abs().amax(dim=-1)", "y.amax(dim=-1).abs()"),
        "divided by 128": FORMULA.edit("amax(dim=-1) / top", "amax(dim=-1) / (top + 1)"),
        "127 always": FORMULA.set(bits=8),
        "factors ignored": FORMULA.set(smooth=None),
        "factors divide": FORMULA.edit("* smooth", "/ smooth"),
        "factors after the scale": FORMULA.edit("scale = y.abs()", "scale = x.double().abs()"),
        "truncation": FORMULA.edit("torch.round(", "torch.trunc("),
        "halves away from zero": FORMULA.edit("torch.round(y / safe[..., None])", "(y.sign() * torch.floor(y.abs() / safe[..., None] + 0.5))"),
        "inverse scale returned": FORMULA.edit("to(torch.int8), scale", "to(torch.int8), 1 / scale"),
        "scale floored at 1e-4": FORMULA.edit("safe = torch.where(scale > 0, scale, torch.ones_like(scale))", "safe = scale = scale.clamp(min=1e-4)"),
        "maximum of whole tiles of 16": FORMULA.edit("y.abs().amax(", "y.abs()[..., : max(y.shape[-1] // 16 * 16, 1)].amax("),
        "scale in float16": FORMULA.edit("safe = torch", "scale = scale.half().double()\n    safe = torch"),
        "zero row gives a scale of 1": FORMULA.edit("to(torch.int8), scale", "to(torch.int8), safe"),
        "mean for maximum": FORMULA.edit("y.abs().amax(dim=-1)", "y.abs().mean(dim=-1) * 3"),
    },
)  # fmt: skip
