"""Cases for int8 matmul. Keywords: ``a`` (M, K), ``b`` (K, N), ``scale``, ``token_scale`` (M,), ``bias`` (N,),
``int_bias`` (N,) int32."""

from __future__ import annotations

from typing import Any, Optional

import torch

from precision_align.library.cases import FLOATS
from precision_align.library.drawing import Drawn, Family, fixed, normal, uniform, whole
from precision_align.library.formulas import Formula, load_torch_npu

FORMULA = Formula("int8_matmul", tensor="scale")
Tensor = torch.Tensor
Optionally = Optional[Tensor]


def numbers(*shape: int) -> Drawn:
    return whole(*shape, low=-128, high=128, dtype=torch.int8)


def sized(m: int, k: int, n: int) -> dict[str, Any]:
    return {"a": numbers(m, k), "b": numbers(k, n), "scale": uniform(n, low=1e-4, high=5e-4)}


family = Family(float32=("token_scale", "bias"), **sized(9, 32, 12))


def call_torch(
    a: Tensor, b: Tensor, scale: Tensor, token_scale: Optionally = None, bias: Optionally = None,
    int_bias: Optionally = None,
) -> Tensor:  # fmt: skip
    """An exact product in int32 (PyTorch's CPU matmul of whole numbers), then the scales in float32."""
    wide = scale.dtype if scale.dtype == torch.float64 else torch.float32
    total = (a.int().cpu()[:, :, None] * b.int().cpu()[None]).sum(dim=1, dtype=torch.int32).to(a.device)
    total = total if int_bias is None else total + int_bias.int()
    factor = (
        scale.to(wide) if token_scale is None else torch.outer(token_scale.to(wide), scale.to(wide).expand(b.shape[1]))
    )
    y = total.to(wide) * factor
    return (y if bias is None else y + bias.to(wide)).to(scale.dtype)


def call_torch_npu(
    a: Tensor, b: Tensor, scale: Tensor, token_scale: Optionally = None, bias: Optionally = None,
    int_bias: Optionally = None,
) -> Tensor:  # fmt: skip
    """torch_npu.npu_quant_matmul: an int32 bias comes before the scale, a floating one after; int8 is its default output."""
    return load_torch_npu().npu_quant_matmul(  # type: ignore[no-any-return]
        a,
        b,
        scale.float(),
        pertoken_scale=token_scale,
        bias=int_bias if bias is None else bias,
        output_dtype=scale.dtype,
    )


CASES = [
    family("plain", "unsigned numbers, transposed b", "basic", dtypes=FLOATS),
    family("one-scale", "a scale for all", "granularity", scale=uniform(1, low=1e-4, high=5e-4)),
    family(
        "by-token", "the scale of another row", "granularity", token_scale=uniform(9, low=0.2, high=2.0), dtypes=FLOATS
    ),
    family(
        "square-by-token",
        "token scales by column",
        "granularity",
        token_scale=uniform(12, low=0.2, high=2.0),
        **sized(12, 32, 12),
    ),
    family("bias", "the bias before the scale", "bias", bias=normal(12), dtypes=FLOATS),
    family(
        "int-bias", "the bias after the scale", "bias", int_bias=whole(12, low=-20000, high=20000, dtype=torch.int32)
    ),
    family(
        "both-scales-and-bias",
        "the token scale on the bias too",
        "bias",
        token_scale=uniform(9, low=0.2, high=2.0),
        bias=normal(12),
    ),
    family("inner-30", "K not a multiple of 16", "tile", **sized(5, 30, 7)),
    family("inner-65", "K one beyond a tile of 64", "tile", **sized(5, 65, 7)),
    family(
        "long-sum",
        "2^24 is passed: float32 cannot add it up exactly",
        "accumulation",
        a=fixed([[127] * 2048] * 2, torch.int8),
        b=numbers(2048, 3).then(lambda b: b.clamp(min=-127).abs() | 1),
        scale=uniform(3, low=1e-4, high=5e-4),
    ),
    family(
        "extremes",
        "-128 times -128",
        "edge",
        a=fixed([[-128] * 32] * 3, torch.int8),
        b=fixed([[-128, 127]] * 32, torch.int8),
        scale=uniform(2, low=1e-4, high=5e-4),
    ),
    family("one-row", "a single row", "size-1", **sized(1, 32, 12)),
    family("inner-1", "a sum of one", "size-1", **sized(9, 1, 12)),
    family("empty", "no row", "empty", **sized(0, 32, 12)),
    *family.layouts("a", "b"),
]

OPERATOR = FORMULA.describe(
    CASES,
    {"torch": call_torch, "torch_npu": call_torch_npu},
    {
        "b unsigned": FORMULA.edit("b.double()", "(b.double() % 256)"),
        "b transposed": FORMULA.edit("b.double()", "(b.double().T.reshape(b.shape))"),
        "scale forgotten": FORMULA.edit("total * scale.double()", "total + 0 * scale.double()"),
        "one scale for all": FORMULA.change(scale=lambda scale: scale[:1].expand_as(scale)),
        "token scale ignored": FORMULA.set(token_scale=None),
        "token scale by column": FORMULA.edit("token_scale.double()[:, None]", "(token_scale.double()[None] if len(token_scale) == y.shape[1] else token_scale.double()[:, None])"),
        "token scale of the next row": FORMULA.change(token_scale=lambda scale: scale.roll(1)),
        "bias before the scale": FORMULA.edit("y + bias.double()", "y + bias.double() * scale.double()"),
        "int bias after the scale": FORMULA.edit("total + int_bias.double()", "total + int_bias.double() / scale.double()"),
        "bias ignored": FORMULA.set(bias=None),
        "int bias ignored": FORMULA.set(int_bias=None),
        "token scale on the bias": FORMULA.edit("y + bias.double()", "y + bias.double() * (1 if token_scale is None else token_scale.double()[:, None])"),
        "sum in int16": FORMULA.edit("a.double() @ b.double()", "((a.double() @ b.double() + 32768) % 65536 - 32768)"),
        "sum saturates in int16": FORMULA.edit("a.double() @ b.double()", "(a.double() @ b.double()).clamp(-32768, 32767)"),
        "sum in bfloat16": FORMULA.edit("a.double() @ b.double()", "(a.double() @ b.double()).bfloat16().double()"),
        "inner tail of 16 dropped": FORMULA.edit("a.double() @", "(a.double() * (torch.arange(a.shape[1]) < max(a.shape[1] // 16 * 16, 1))) @"),
        "-128 is -127": FORMULA.edit("a.double() @", "a.double().clamp(min=-127) @"),
        "scale in bfloat16": FORMULA.edit("total * scale.double()", "total * scale.bfloat16().double()"),
    },
)  # fmt: skip
