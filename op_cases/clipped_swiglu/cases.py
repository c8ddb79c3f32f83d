"""Cases for the clipped SwiGLU of GPT-OSS. Keywords: ``x``, ``alpha``, ``limit``, ``bias``, ``interleaved``."""

from __future__ import annotations

import math

import torch

from precision_align.library.cases import FLOATS
from precision_align.library.drawing import Family, levels, normal
from precision_align.library.formulas import Formula, load_torch_npu

FORMULA = Formula("clipped_swiglu")
family = Family(x=normal(6, 96, gain=3.0), wrt=("x",))


def call_torch(
    x: torch.Tensor, *, alpha: float = 1.702, limit: float = 7.0, bias: float = 1.0, interleaved: bool = True
) -> torch.Tensor:
    """silu(alpha a) / alpha with minimum and maximum, in float32 and back."""
    wide = x if x.dtype == torch.float64 else x.float()
    pairs = wide.unflatten(-1, (-1, 2)) if interleaved else wide.unflatten(-1, (2, -1)).transpose(-1, -2)
    a, b = pairs.unbind(-1)
    a = torch.where(a > limit, limit, a)
    b = torch.where(b.abs() > limit, b.sign() * limit, b)
    return (torch.nn.functional.silu(alpha * a) / alpha * (b + bias)).to(x.dtype)


def call_torch_npu(x: torch.Tensor, **options: object) -> torch.Tensor:
    """torch_npu.npu_clipped_swiglu."""
    return load_torch_npu().npu_clipped_swiglu(x, **options)  # type: ignore[no-any-return]


CASES = [
    family("plain", "a and b swapped, halves for pairs", "basic", dtypes=FLOATS),
    family("halves", "pairs for halves", "order", interleaved=False, dtypes=FLOATS),
    family("clipped", "most values beyond the limit", "limit", x=normal(6, 96, gain=20.0)),
    family("at-the-limit", "exactly 7 and -7", "ties", x=levels(6, 64, low=-8, high=8, step=1.0), wrt=()),
    family("limit-2", "the limit ignored", "limit", limit=2.0),
    family("alpha-1", "alpha ignored", "scale", alpha=1.0),
    family("bias-0", "bias ignored", "bias", bias=0.0),
    family("negative-a", "a has no lower limit", "limit", x=normal(6, 64, gain=4.0, mean=-9.0)),
    family("size-2", "one pair a row", "size-1", x=normal(40, 2)),
    family("row-66", "33 pairs", "tile", x=normal(5, 66)),
    family("empty", "no row", "empty", x=normal(0, 8)),
    family("nan", "a NaN spoils one value", "nonfinite", wrt=(), x=normal(4, 64).at((1, 40), math.nan)),
    *family.layouts("x"),
]

OPERATOR = FORMULA.describe(
    CASES,
    {"torch": call_torch, "torch_npu": call_torch_npu},
    {
        "a and b swapped": FORMULA.edit("a, b = (x[..., 0::2], x[..., 1::2])", "b, a = (x[..., 0::2], x[..., 1::2])"),
        "halves always": FORMULA.set(interleaved=False),
        "pairs always": FORMULA.set(interleaved=True),
        "limit 7 always": FORMULA.set(limit=7.0),
        "a not clipped": FORMULA.edit("a.clamp(max=limit)", "a"),
        "b not clipped": FORMULA.edit("b.clamp(min=-limit, max=limit)", "b"),
        "b clipped above only": FORMULA.edit("b.clamp(min=-limit, max=limit)", "b.clamp(max=limit)"),
        "a clipped below too": FORMULA.edit("a.clamp(max=limit)", "a.clamp(min=-limit, max=limit)"),
        "alpha ignored": FORMULA.set(alpha=1.0),
        "alpha 1.702 always": FORMULA.set(alpha=1.702),
        "bias ignored": FORMULA.set(bias=0.0),
        "bias 1 always": FORMULA.set(bias=1.0),
        "bias added after": FORMULA.edit("* (b + bias)", "* b + bias"),
        "strict limit": FORMULA.edit("a.clamp(max=limit)", "a.masked_fill(a >= limit, 0)"),
        "clip passes the gradient": FORMULA.edit("a.clamp(max=limit)", "(a + (a.clamp(max=limit) - a).detach())"),
    },
)
