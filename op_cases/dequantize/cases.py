"""Cases for dequantisation. Keywords: ``q`` int8 (..., C), ``scale``, ``offset`` (or None), ``group``, ``added``. The
result has the dtype of ``scale``."""

from __future__ import annotations

from typing import Any, Optional

import torch

from precision_align.library.cases import FLOATS
from precision_align.library.drawing import Family, fixed, uniform, whole
from precision_align.library.formulas import Formula, load_torch_npu

FORMULA = Formula("dequantize", tensor="scale")
Tensor = torch.Tensor
POSITIVE = {"low": 0.01, "high": 0.05}


def numbers(*shape: int, bits: int = 8) -> Any:
    return whole(*shape, low=-(2 ** (bits - 1)), high=2 ** (bits - 1), dtype=torch.int8)


def offsets(*shape: int) -> Any:
    return whole(*shape, low=-50, high=50).then(lambda values: values.float())


family = Family(q=numbers(7, 24), scale=uniform(1, **POSITIVE), wrt=("scale",))


def call_torch(
    q: Tensor, scale: Tensor, offset: Optional[Tensor] = None, *, group: int = 0, added: bool = False
) -> Tensor:
    """q * scale plus or minus offset * scale, in float32 and back."""
    wide = scale.dtype if scale.dtype == torch.float64 else torch.float32
    steps = q.to(wide).unflatten(-1, (-1, group)) if group else q.to(wide)
    factor = scale.to(wide)[..., None] if group else scale.to(wide)
    if offset is not None:
        shift = offset.to(wide)[..., None] if group else offset.to(wide)
        steps = torch.add(steps, shift, alpha=1 if added else -1)
    found = torch.mul(steps, factor)
    return (found.flatten(-2) if group else found).to(scale.dtype)


def call_torch_npu(q: Tensor, scale: Tensor, offset: Optional[Tensor] = None, **options: Any) -> Tensor:
    """torch_npu.npu_anti_quant(x, scale, offset): the offset is ADDED, so PyTorch's zero point changes its sign."""
    if options.get("group") or scale.dim() > 1:
        return call_torch(q, scale, offset, **options)
    shift = offset if offset is None or options.get("added") else -offset
    return load_torch_npu().npu_anti_quant(
        q, scale.float(), offset=None if shift is None else shift.float(), dst_dtype=scale.dtype
    )  # type: ignore[no-any-return]


CASES = [
    family("plain", "no scale", "basic", dtypes=FLOATS),
    family("by-channel", "one scale for all", "granularity", scale=uniform(24, **POSITIVE), dtypes=FLOATS),
    family("by-token", "scales by channel", "granularity", q=numbers(24, 24), scale=uniform(24, 1, **POSITIVE)),
    family("by-group", "groups interleaved", "granularity", scale=uniform(7, 3, **POSITIVE), group=8),
    family("zero-point", "added for subtracted", "offset", offset=offsets(1)),
    family("offset-added", "subtracted for added: npu_anti_quant", "offset", offset=offsets(1), added=True),
    family("offset-by-channel", "one offset for all", "offset", scale=uniform(24, **POSITIVE), offset=offsets(24)),
    family(
        "offset-by-group",
        "the offset of the first group",
        "offset",
        scale=uniform(7, 3, **POSITIVE),
        offset=offsets(7, 3),
        group=8,
    ),
    family("int4", "values of -8 to 7", "bits", q=numbers(7, 24, bits=4), offset=offsets(1)),
    family(
        "limits",
        "-128 negated is not 128 in int8",
        "edge",
        q=fixed([[-128, -127, 0, 1, 127]], torch.int8),
        offset=fixed([100.0]),
    ),
    family("large-scale", "beyond float16", "magnitude", scale=uniform(1, low=300.0, high=900.0), dtypes=FLOATS),
    family(
        "tiny-scale", "subnormal in float16", "magnitude", scale=uniform(1, low=1e-7, high=4e-7), dtypes=("float16",)
    ),
    family("odd-65", "one beyond a vector of 64", "tile", q=numbers(3, 65)),
    family("single", "one value", "size-1", q=numbers(1)),
    family("empty", "nothing", "empty", q=numbers(0, 24)),
    *family.layouts("q"),
]

OPERATOR = FORMULA.describe(
    CASES,
    {"torch": call_torch, "torch_npu": call_torch_npu},
    {
        "offset added always": FORMULA.set(added=True),
        "offset subtracted always": FORMULA.set(added=False),
        "offset ignored": FORMULA.set(offset=None),
        "offset after the scale": FORMULA.edit("steps + shift if added else steps - shift", "steps + (shift if added else -shift) / (scale.double().repeat_interleave(group, dim=-1) if group else scale.double())"),
        "offset in int8": FORMULA.edit("steps - shift", "(steps - shift + 128).remainder(256) - 128"),
        "divided": FORMULA.edit("return steps * (", "return steps / ("),
        "one scale for all": FORMULA.change(scale=lambda scale: scale[..., :1].expand_as(scale)),
        "scale of the token before": FORMULA.change(scale=lambda scale: scale.roll(1, 0)),
        "groups interleaved": FORMULA.edit("(scale.double().repeat_interleave(group, dim=-1) if group", "(scale.double().repeat(1, group) if group"),
        "offsets of the first group": FORMULA.edit("offset.double().repeat_interleave(group, dim=-1)", "offset.double()[..., :1]"),
        "unsigned": FORMULA.edit("q.double()", "(q.double() % 256)"),
        "scale in bfloat16": FORMULA.edit("if group else scale.double())", "if group else scale.bfloat16().double())"),
        "scale squared": FORMULA.edit("else scale.double())", "else scale.double() ** 2)"),
        "no gradient of the scale": FORMULA.edit("if group else scale.double())", "if group else scale.double().detach() + 0 * scale.double())"),
    },
)  # fmt: skip
