"""Cases for LLaMA's complex rotary embedding. Keywords: ``x`` (B, S, N, D), ``angles`` (S, D / 2) in float32."""

from __future__ import annotations

import math

import torch

from precision_align.library.cases import FLOATS
from precision_align.library.drawing import Drawn, Family, derived, normal
from precision_align.library.formulas import Formula, load_torch_npu

FORMULA = Formula("rope_complex")
Tensor = torch.Tensor


def turn(base: float = 10000.0, first: int = 0) -> Drawn:
    """The angles of positions ``first``, first + 1, ... for the x before them."""

    def make(x: Tensor) -> Tensor:
        rates = base ** -(torch.arange(0, x.shape[-1], 2, dtype=torch.float64) / x.shape[-1])
        return ((torch.arange(x.shape[1], dtype=torch.float64) + first)[:, None] * rates).float()

    return derived(make, "x")


family = Family(x=normal(2, 12, 3, 16), angles=turn(), wrt=("x",), float32=("angles",))


def call_torch(x: Tensor, angles: Tensor) -> Tensor:
    """view_as_complex, torch.polar and their product, in float32 and back."""
    pairs = torch.view_as_complex(
        x.to(angles.dtype).clone(memory_format=torch.contiguous_format).unflatten(-1, (-1, 2))
    )
    factors = torch.polar(torch.ones_like(angles), angles)
    return torch.view_as_real(pairs * factors[:, None, :]).flatten(-2).to(x.dtype)


def call_torch_npu(x: Tensor, angles: Tensor) -> Tensor:
    """torch_npu.npu_rotary_mul(..., 'interleave'): cosines and sines once for each element."""
    wide = angles.repeat_interleave(2, dim=-1)[None, :, None, :]
    return load_torch_npu().npu_rotary_mul(x, wide.cos().to(x.dtype), wide.sin().to(x.dtype), "interleave")  # type: ignore[no-any-return]


CASES = [
    family("plain", "halves for pairs, the turn backwards", "basic", dtypes=FLOATS),
    family("first-position", "position 0 does not turn", "size-1", x=normal(2, 1, 3, 16)),
    family(
        "late-positions", "angles of 30000: sine and cosine need range reduction", "magnitude", angles=turn(first=30000)
    ),
    family("base-500000", "another base", "scale", angles=turn(base=5e5), x=normal(1, 40, 2, 16)),
    family("heads-1", "positions and heads swapped", "shape", x=normal(1, 12, 1, 16)),
    family("size-2", "one pair", "size-1", x=normal(1, 30, 2, 2)),
    family("size-20", "not a multiple of 16", "tile", x=normal(1, 9, 2, 20)),
    family("sequence-65", "one beyond a tile of 64", "tile", x=normal(1, 65, 1, 8)),
    family("large", "values near the end of float16", "magnitude", x=normal(2, 12, 3, 16, gain=9000.0), dtypes=FLOATS),
    family("empty", "no batch", "empty", x=normal(0, 12, 3, 16)),
    family("nan", "NaN spoils its pair only", "nonfinite", wrt=(), x=normal(2, 12, 3, 16).at((0, 3, 1, 4), math.nan)),
    *family.layouts("x"),
]

OPERATOR = FORMULA.describe(
    CASES,
    {"torch": call_torch, "torch_npu": call_torch_npu},
    {
        "halves for pairs": FORMULA.edit("x[..., 0::2], x[..., 1::2]", "x.chunk(2, dim=-1)", "dim=-1)\n    return rotated.flatten(-2)", "dim=-2)\n    return rotated.flatten(-2)"),
        "backwards": FORMULA.edit("torch.sin(turn)", "-torch.sin(turn)"),
        "sine and cosine swapped": FORMULA.edit("torch.cos(turn), torch.sin(turn)", "torch.sin(turn), torch.cos(turn)"),
        "positions one off": FORMULA.edit("angles.double()", "(2 * angles.double() - angles.double().roll(1, 0))"),
        "real part only": FORMULA.edit("real * sine + imaginary * cosine", "imaginary * cosine"),
        "minus forgotten": FORMULA.edit("real * cosine - imaginary", "real * cosine + imaginary"),
        "angles in bfloat16": FORMULA.edit("angles.double()", "angles.bfloat16().double()"),
        "cosine in float16": FORMULA.edit("torch.cos(turn)", "torch.cos(turn).half().float()"),
        "pairs swapped": FORMULA.edit("x[..., 0::2], x[..., 1::2]", "x[..., 1::2], x[..., 0::2]"),
        "first position always": FORMULA.edit("angles.double()", "angles.double()[:1]"),
        "no turn": FORMULA.edit("angles.double()", "(0 * angles.double())"),
        "angle by head": FORMULA.edit("[:, None, :]", "[: x.shape[2]] if x.shape[2] <= angles.shape[0] else angles.double()[:, None, :]"),
        "no gradient of the imaginary part": FORMULA.edit("imaginary * cosine", "imaginary.detach() * cosine"),
        "turned twice": FORMULA.edit("torch.cos(turn), torch.sin(turn)", "torch.cos(2 * turn + 0.5), torch.sin(2 * turn + 0.5)"),
    },
)  # fmt: skip
