"""Cases for quantisation. Keywords: ``x`` (..., C), ``scale``, ``zero`` (float32 whole numbers or None), ``bits``,
``group``, ``divide``. Result: int8."""

from __future__ import annotations

from typing import Any, Optional

import torch

from precision_align.library.drawing import Family, fixed, levels, normal, uniform, whole
from precision_align.library.formulas import Formula, load_torch_npu

FORMULA = Formula("quantize")
Tensor = torch.Tensor
family = Family(x=normal(7, 24), scale=fixed(0.02), float32=("scale", "zero"), dtypes=("float32", "bfloat16"))


def call_torch(
    x: Tensor, scale: Tensor, zero: Optional[Tensor] = None, *, bits: int = 8, group: int = 0, divide: bool = True
) -> Tensor:
    """floor(x + 1/2) with the ties mended, minimum and maximum; groups by reshaping."""
    wide = x.to(scale.dtype)
    wide = wide.unflatten(-1, (-1, group)) if group else wide
    factor = scale[..., None] if group else scale
    real = torch.true_divide(wide, factor) if divide else torch.mul(wide, factor)
    whole_part = torch.floor(real)
    rest = real - whole_part
    up = (rest > 0.5) | ((rest == 0.5) & (whole_part.remainder(2) == 1))
    steps = whole_part + up.to(wide.dtype)
    if zero is not None:
        steps = steps + (zero[..., None] if group else zero)
    top = 2 ** (bits - 1)
    found = torch.minimum(torch.maximum(steps, steps.new_tensor(-top)), steps.new_tensor(top - 1))
    return (found.flatten(-2) if group else found).to(torch.int8)


def call_torch_npu(x: Tensor, scale: Tensor, zero: Optional[Tensor] = None, **options: Any) -> Tensor:
    """torch_npu.npu_quantize(x, scales, zero_points, qint8, axis, div_mode): one scale, or one a channel of the last axis."""
    if options.get("group") or options.get("bits", 8) != 8 or scale.dim() > 1:
        return call_torch(x, scale, zero, **options)
    axis, one = x.dim() - 1, scale.reshape(-1)
    offset = None if zero is None else zero.reshape(-1).to(x.dtype)
    return load_torch_npu().npu_quantize(x, one, offset, torch.qint8, axis, options.get("divide", True)).to(torch.int8)  # type: ignore[no-any-return]


POSITIVE = {"low": 0.01, "high": 0.05}
CASES = [
    family("plain", "truncation for rounding", "basic", dtypes=("float32", "bfloat16", "float16")),
    family("by-channel", "one scale for all", "granularity", scale=uniform(24, **POSITIVE)),
    family("by-token", "scales by channel", "granularity", x=normal(24, 24), scale=uniform(24, 1, **POSITIVE)),
    family("by-group", "groups along the wrong axis", "granularity", group=8, scale=uniform(7, 3, **POSITIVE)),
    family("zero-point", "the zero point subtracted", "zero", zero=fixed(17.0)),
    family(
        "zero-point-by-channel",
        "one zero point for all",
        "zero",
        scale=uniform(24, **POSITIVE),
        zero=whole(24, low=-40, high=40).then(lambda z: z.float()),
    ),
    family(
        "zero-point-by-group",
        "one zero point for all",
        "zero",
        group=8,
        scale=uniform(7, 3, **POSITIVE),
        zero=whole(7, 3, low=-40, high=40).then(lambda z: z.float()),
    ),
    family("int4", "saturation at 127", "bits", bits=4, scale=fixed(0.2)),
    family("multiply", "divided for multiplied", "mode", scale=fixed(40.0), divide=False),
    family("saturated", "wrap-around beyond 127 and -128", "magnitude", x=normal(7, 24, gain=30.0)),
    family(
        "saturated-with-zero",
        "saturation before the zero point",
        "magnitude",
        x=normal(7, 24, gain=2.0),
        zero=fixed(60.0),
    ),
    family(
        "ties",
        "halves away from zero, or up",
        "ties",
        x=levels(7, 64, low=-40, high=40, step=0.5),
        scale=fixed(1.0),
        exact=True,
    ),
    family(
        "ties-scaled",
        "halves after a division by 1/4",
        "ties",
        x=levels(7, 64, low=-40, high=40, step=0.125),
        scale=fixed(0.25),
        exact=True,
    ),
    family(
        "limits",
        "exactly -128 and 127, and one beyond",
        "edge",
        x=fixed([[-130.0, -129, -128, -127, -1, 0, 1, 126, 127, 128, 129, 0]]),
        scale=fixed(1.0),
        exact=True,
    ),
    family("odd-65", "one beyond a vector of 64", "tile", x=normal(3, 65)),
    family("single", "one value", "size-1", x=normal(1)),
    family("empty", "nothing", "empty", x=normal(0, 24)),
    *family.layouts("x"),
]

OPERATOR = FORMULA.describe(
    CASES,
    {"torch": call_torch, "torch_npu": call_torch_npu},
    {
        "truncation": FORMULA.edit("torch.round(", "torch.trunc("),
        "floor": FORMULA.edit("torch.round(", "torch.floor("),
        "halves away from zero": FORMULA.edit("torch.round(x / scale if divide else x * scale)", "torch.sign(x) * torch.floor((x / scale if divide else x * scale).abs() + 0.5)"),
        "halves up": FORMULA.edit("torch.round(x / scale if divide else x * scale)", "torch.floor((x / scale if divide else x * scale) + 0.5)"),
        "multiplied": FORMULA.edit("x / scale if divide", "x * scale if divide"),
        "divided always": FORMULA.set(divide=True),
        "zero point subtracted": FORMULA.edit("+ offset", "- offset"),
        "zero point ignored": FORMULA.set(zero=None),
        "zero point after saturation": FORMULA.edit(" + offset\n", "\n", "2 ** (bits - 1) - 1).to", "2 ** (bits - 1) - 1).add(offset).clamp(-128, 127).to"),
        "wrap-around": FORMULA.edit(".clamp(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1).to(torch.int8)", ".to(torch.int64).add(128).remainder(256).sub(128).to(torch.int8)"),
        "8 bits always": FORMULA.set(bits=8),
        "symmetric range": FORMULA.edit("-(2 ** (bits - 1))", "-(2 ** (bits - 1)) + 1"),
        "one scale for all": FORMULA.change(scale=lambda scale: scale.mean().expand_as(scale)),
        "scales by channel for by token": FORMULA.edit("scale.double()\n", "scale.double().T if scale.shape[-1:] == (1,) and scale.dim() == 2 else scale.double()\n"),
        "groups interleaved": FORMULA.edit("scale = scale.repeat_interleave(group, dim=-1)", "scale = scale.repeat(1, group)"),
        "zero point of the first group": FORMULA.edit("zero.double().repeat_interleave(group, dim=-1)", "zero.double()[..., :1]"),
        "divided in bfloat16": FORMULA.edit("x / scale if divide", "(x / scale).bfloat16().float() if divide"),
        "unsigned": FORMULA.edit("steps.clamp(", "steps.abs().clamp("),
    },
)  # fmt: skip
