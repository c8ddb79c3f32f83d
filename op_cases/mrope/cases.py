"""Cases for multimodal rotary embedding. Keywords: ``x`` (T, N, D), ``positions`` (3, T), ``sections``, ``base``."""

from __future__ import annotations

import math

import torch

from precision_align.library.cases import FLOATS
from precision_align.library.drawing import Family, fixed, normal, whole
from precision_align.library.formulas import Formula

FORMULA = Formula("mrope")
Tensor = torch.Tensor
family = Family(x=normal(14, 3, 16), positions=whole(3, 14, high=60), sections=(2, 3, 3), wrt=("x",))


def call_torch(x: Tensor, positions: Tensor, *, sections: tuple[int, ...], base: float = 10000.0) -> Tensor:
    """Tables for all three positions, cut at the sections twice over and joined, then x cos + rotate_half(x) sin."""
    wide = x.dtype if x.dtype == torch.float64 else torch.float32
    rates = 1.0 / base ** (torch.arange(0, x.shape[-1], 2, dtype=wide, device=x.device) / x.shape[-1])
    table = torch.cat([positions[..., None].to(wide) * rates] * 2, dim=-1)
    pieces = [piece[i % 3] for i, piece in enumerate(table.split(list(sections) * 2, dim=-1))]
    angles = torch.cat(pieces, dim=-1)[:, None, :]
    first, second = x.to(wide).chunk(2, dim=-1)
    return (x.to(wide) * angles.cos() + torch.cat([-second, first], dim=-1) * angles.sin()).to(x.dtype)


CASES = [
    family("plain", "one position for all sections", "basic", dtypes=FLOATS),
    family("text", "three equal positions: plain rope", "shape", positions=fixed([list(range(14))] * 3)),
    family(
        "real-sections",
        "16, 24, 24 of Qwen2-VL",
        "real",
        x=normal(6, 2, 128),
        positions=whole(3, 6, high=300),
        sections=(16, 24, 24),
    ),
    family("empty-section", "a section of no pair", "edge", sections=(0, 5, 3)),
    family("one-section", "all by the width", "edge", sections=(0, 0, 8)),
    family("base-1e6", "another base", "scale", base=1e6),
    family("late", "positions of 20000", "magnitude", positions=whole(3, 14, low=19000, high=20000)),
    family("position-0", "no turn", "size-1", positions=whole(3, 14, high=1)),
    family("size-6", "one pair a section", "tile", x=normal(14, 3, 6), sections=(1, 1, 1)),
    family("tokens-65", "one beyond a tile of 64", "tile", x=normal(65, 1, 16), positions=whole(3, 65, high=60)),
    family("empty", "no token", "empty", x=normal(0, 3, 16), positions=whole(3, 0)),
    family("nan", "NaN spoils its pair only", "nonfinite", wrt=(), x=normal(14, 3, 16).at((3, 1, 4), math.nan)),
    *family.layouts("x"),
]

OPERATOR = FORMULA.describe(
    CASES,
    {"torch": call_torch},
    {
        "time for all": FORMULA.change(positions=lambda p: p[:1].expand(3, -1)),
        "height and width swapped": FORMULA.change(positions=lambda p: p[[0, 2, 1]]),
        "sections reversed": FORMULA.edit("enumerate(sections)", "enumerate(sections[::-1])"),
        "sections interleaved": FORMULA.edit("torch.tensor([a for a, size in enumerate(sections) for _ in range(size)], device=x.device)", "torch.arange(half, device=x.device) % 3"),
        "rates restart in each section": FORMULA.edit("torch.arange(half, dtype=torch.float64, device=x.device)", "torch.tensor([float(i) for size in sections for i in range(size)], dtype=torch.float64)"),
        "base 10000 always": FORMULA.set(base=10000.0),
        "rates by D": FORMULA.edit("device=x.device) / half)", "device=x.device) / x.shape[-1])"),
        "pairs interleaved": FORMULA.edit("x[..., :half], x[..., half:]", "x[..., 0::2], x[..., 1::2]"),
        "backwards": FORMULA.edit("torch.sin(turn)", "-torch.sin(turn)"),
        "angles in float16": FORMULA.edit("(positions[axis].double() * rates[:, None])", "(positions[axis].double() * rates[:, None]).half().float()"),
        "positions one off": FORMULA.change(positions=lambda p: p + 1),
        "second half not turned": FORMULA.edit("second * cosine + first * sine", "second"),
        "no gradient of the second half": FORMULA.edit("x[..., half:]", "x[..., half:].detach()"),
    },
)  # fmt: skip
