"""Cases for RMSNorm + quantisation. Keywords: ``x``, ``weight``, ``scale``, ``offset`` (None: by token), ``eps``. Results:
int8, and by token the scale in float32."""

from __future__ import annotations

from typing import Optional

import torch

from precision_align.library.cases import FLOATS
from precision_align.library.drawing import Family, fixed, normal
from precision_align.library.formulas import Formula

FORMULA = Formula("rms_norm_quant", keep=(1,))
Tensor = torch.Tensor
Optionally = Optional[Tensor]
WEIGHT = {"mean": 1.0, "gain": 0.2}
family = Family(x=normal(6, 48), weight=normal(48, **WEIGHT), float32=("scale", "offset"))


def call_torch(
    x: Tensor, weight: Tensor, scale: Optionally = None, offset: Optionally = None, *, eps: float = 1e-6
) -> tuple[Tensor, ...]:
    """vecdot and rsqrt, aminmax by row, in float32."""
    wide = x.dtype if x.dtype == torch.float64 else torch.float32
    rows = x.to(wide)
    y = rows * torch.rsqrt(torch.linalg.vecdot(rows, rows)[..., None] / x.shape[-1] + eps)
    y = y * weight.to(wide)
    if scale is not None:
        shift = torch.zeros_like(scale) if offset is None else offset
        return (torch.clamp(torch.add(y / scale.to(wide), shift.to(wide)).round(), -128, 127).to(torch.int8),)
    low, high = torch.aminmax(y, dim=-1)
    token = torch.maximum(high, -low) / 127
    return torch.nan_to_num(y / token[..., None], nan=0.0).round().to(torch.int8), token


STATIC = {"scale": fixed([0.03])}
CASES = [
    family("plain", "no scale by token", "basic", dtypes=FLOATS),
    family("static", "a scale that is given", "static", dtypes=FLOATS, **STATIC),
    family("static-offset", "the offset forgotten", "static", offset=fixed([20.0]), **STATIC),
    family("saturated", "wrap-around", "magnitude", scale=fixed([0.01]), offset=fixed([-30.0])),
    family("small-rows", "eps 1e-5 for 1e-6", "eps", x=normal(6, 48, gain=1e-3)),
    family("small-rows-static", "eps 1e-5 for 1e-6", "eps", x=normal(6, 48, gain=1e-3), **STATIC),
    family("outlier", "one channel carries all", "magnitude", x=normal(6, 48).at((slice(None), 3), 100.0)),
    family("zero-row", "zeros, no NaN", "rows", x=normal(6, 48).at(2, 0.0)),
    family("large", "squares beyond float16", "magnitude", x=normal(6, 48, gain=300.0), dtypes=FLOATS),
    family("row-65", "one beyond a tile of 64", "tile", x=normal(6, 65), weight=normal(65, **WEIGHT)),
    family("channels-1", "one channel", "size-1", x=normal(40, 1), weight=normal(1, **WEIGHT)),
    family("empty", "no row", "empty", x=normal(0, 48)),
    *family.layouts("x"),
]

OPERATOR = FORMULA.describe(
    CASES,
    {"torch": call_torch},
    {
        "norm forgotten": FORMULA.edit("x / torch.sqrt(x.square().mean(dim=-1, keepdim=True) + eps) * weight", "x * weight"),
        "weight forgotten": FORMULA.edit("* weight.double()", ""),
        "weight after the scale": FORMULA.edit("token = y.abs()", "token = (y / weight.double()).abs()"),
        "eps 1e-5 always": FORMULA.set(eps=1e-5),
        "multiplied by the scale": FORMULA.edit("y / scale.double()", "y * scale.double()"),
        "offset ignored": FORMULA.set(offset=None),
        "offset subtracted": FORMULA.edit("offset.double()", "-offset.double()"),
        "divided by 128": FORMULA.edit("/ 127", "/ 128"),
        "truncation by token": FORMULA.edit("torch.round(y / safe)", "torch.trunc(y / safe)"),
        "truncation": FORMULA.edit("torch.round(steps)", "torch.trunc(steps)"),
        "wrap-around": FORMULA.edit("torch.round(steps).clamp(-128, 127)", "((torch.round(steps) + 128) % 256 - 128)"),
        "one scale for all": FORMULA.edit("y.abs().amax(dim=-1) / 127", "(0 * y.abs().amax(dim=-1) + (y.abs().amax() if y.numel() else 0)) / 127"),
        "norm rounded to bfloat16": FORMULA.edit("token = y.abs()", "y = y.bfloat16().double()\n    token = y.abs()"),
        "statistics of whole tiles of 64": FORMULA.edit("x.square()", "x[..., : max(x.shape[-1] // 64 * 64, 1)].square()"),
        "squares in float16": FORMULA.edit("x.square()", "x.half().square().double()"),
        "zero rows have a scale of 1": FORMULA.edit("to(torch.int8), token", "to(torch.int8), safe[..., 0]"),
    },
)  # fmt: skip
