"""Cases for weight-only quantised matmul. Keywords: ``x`` (M, K), ``weight`` int8 (K, N) or packed (K, N / 2), ``scale``,
``offset``, ``bias``, ``group``, ``packed``."""

from __future__ import annotations

import math
from typing import Any, Optional

import torch

from precision_align.library.cases import FLOATS
from precision_align.library.drawing import Drawn, Family, normal, uniform, whole
from precision_align.library.formulas import Formula, load_torch_npu

FORMULA = Formula("weight_only_matmul", tensor="x")
Tensor = torch.Tensor
Optionally = Optional[Tensor]


def numbers(*shape: int) -> Drawn:
    return whole(*shape, low=-128, high=128, dtype=torch.int8)


def offsets(*shape: int) -> Drawn:
    return whole(*shape, low=-7, high=8).then(lambda values: values.float())


def sized(m: int, k: int, n: int, groups: int = 0) -> dict[str, Any]:
    by = (groups, n) if groups else (n,)
    return {"x": normal(m, k), "weight": numbers(k, n), "scale": uniform(*by, low=0.002, high=0.02)}


family = Family(wrt=("x", "bias"), **sized(7, 32, 12))


def call_torch(
    x: Tensor, weight: Tensor, scale: Tensor, offset: Optionally = None, bias: Optionally = None, *, group: int = 0,
    packed: bool = False,
) -> Tensor:  # fmt: skip
    """Group by group: the product with whole numbers, minus nothing, times the scale; in float32 and back."""
    wide = x.dtype if x.dtype == torch.float64 else torch.float32
    if packed:  # from bytes to two signed halves by arithmetic
        byte = weight.to(torch.int16) % 256
        halves = torch.stack([byte % 16, torch.div(byte, 16, rounding_mode="floor")], dim=2)
        weight = ((halves + 8) % 16 - 8).reshape(weight.shape[0], -1)
    size = group or x.shape[1]
    y = torch.zeros(x.shape[0], weight.shape[1], dtype=wide, device=x.device)
    for index, (part, w) in enumerate(zip(x.to(wide).split(size, dim=1), weight.to(wide).split(size, dim=0))):
        product = part @ w
        if offset is not None:
            shift = offset[index] if group else offset
            product = product + part.sum(dim=1, keepdim=True) * shift.to(wide)
        y = torch.addcmul(y, product, (scale[index] if group else scale).to(wide).expand_as(product))
    return (y if bias is None else y + bias.to(wide)).to(x.dtype)


def call_torch_npu(
    x: Tensor, weight: Tensor, scale: Tensor, offset: Optionally = None, bias: Optionally = None, *, group: int = 0,
    packed: bool = False,
) -> Tensor:  # fmt: skip
    """torch_npu.npu_weight_quant_batchmatmul(x, weight, antiquant_scale, antiquant_offset, bias=..., group size)."""
    if packed:
        raise NotImplementedError("packed weights must be re-packed by npu_convert_weight_to_int4pack")
    shift = None if offset is None else offset.to(x.dtype)
    wide = bias.float() if bias is not None and x.dtype == torch.bfloat16 else bias
    return load_torch_npu().npu_weight_quant_batchmatmul(  # type: ignore[no-any-return]
        x, weight, scale.to(x.dtype), shift, None, None, wide, group
    )


GROUPED = sized(7, 32, 12, groups=4)
CASES = [
    family("plain", "one scale for all", "basic", dtypes=FLOATS),
    family("offset", "the offset subtracted", "offset", offset=offsets(12), dtypes=FLOATS),
    family("grouped", "groups along N", "granularity", group=8, **GROUPED),
    family("grouped-offset", "offsets of the first group", "offset", group=8, offset=offsets(4, 12), **GROUPED),
    family("int4", "the high four bits first", "packed", packed=True, weight=numbers(32, 6)),
    family(
        "int4-grouped-offset",
        "all at once",
        "packed",
        packed=True,
        group=8,
        offset=offsets(4, 12),
        **{**GROUPED, "weight": numbers(32, 6)},
    ),
    family("bias", "the bias scaled", "bias", bias=normal(12)),
    family("inner-66", "K not a multiple of 16", "tile", group=33, **sized(5, 66, 7, groups=2)),
    family("inner-1024", "a short accumulator", "accumulation", **sized(3, 1024, 5)),
    family("one-row", "decoding", "size-1", **sized(1, 32, 12)),
    family("group-per-row", "groups of one", "size-1", group=1, **sized(7, 4, 12, groups=4)),
    family("large", "sums beyond float16", "magnitude", x=normal(7, 32, gain=3e3), dtypes=FLOATS),
    family("empty", "no row", "empty", **sized(0, 32, 12)),
    family("nan", "NaN spoils its row only", "nonfinite", wrt=(), x=normal(7, 32).at((2, 3), math.nan)),
    *family.layouts("x", "weight"),
]

OPERATOR = FORMULA.describe(
    CASES,
    {"torch": call_torch, "torch_npu": call_torch_npu},
    {
        "offset subtracted": FORMULA.edit("w = w + (", "w = w - ("),
        "offset after the scale": FORMULA.edit("w = w + (offset.double().repeat_interleave(group, dim=0) if group else offset.double())", "w = w + 0 * w", "y = x.double() @ w", "y = x.double() @ (w if offset is None else w + (offset.double().repeat_interleave(group, dim=0) if group else offset.double()))"),
        "offset ignored": FORMULA.set(offset=None),
        "one scale for all": FORMULA.change(scale=lambda scale: scale[..., :1].expand_as(scale)),
        "scale of the first group": FORMULA.edit("w * (scale.double().repeat_interleave(group, dim=0) if group", "w * (scale.double()[:1] if group"),
        "groups interleaved": FORMULA.edit("w * (scale.double().repeat_interleave(group, dim=0) if group", "w * (scale.double().repeat(group, 1) if group"),
        "offset of the first group": FORMULA.edit("(offset.double().repeat_interleave(group, dim=0) if group", "(offset.double()[:1] if group"),
        "high bits first": FORMULA.edit("[low, high]", "[high, low]"),
        "int4 unsigned": FORMULA.edit("torch.where(weight > 7, weight - 16, weight)", "weight"),
        "halves side by side": FORMULA.edit("torch.stack([low, high], dim=-1).flatten(-2)", "torch.cat([low, high], dim=-1)"),
        "bias ignored": FORMULA.set(bias=None),
        "bias scaled": FORMULA.edit("y + bias.double()", "y + bias.double() * (scale.double() if scale.dim() == 1 else scale.double()[0])"),
        "weight rounded to bfloat16": FORMULA.edit("x.double() @ w", "x.double() @ w.bfloat16().double()"),
        "inner tail of 16 dropped": FORMULA.edit("x.double() @ w", "x.double() @ (w * (torch.arange(len(w)) < max(len(w) // 16 * 16, 1))[:, None])"),
        "running sum in bfloat16": FORMULA.edit("y = x.double() @ w", "y = (x.double()[..., None] * w).bfloat16().cumsum(1)[:, -1].float()"),
        "transposed weight": FORMULA.edit("w = weight.double()", "w = weight.double().T.reshape(weight.shape)"),
    },
)  # fmt: skip
