"""Cases for scatter_softmax. Keywords: ``src`` (M, C), ``index`` (M,), ``size``."""

from __future__ import annotations

import math

import torch

from precision_align.library.cases import FLOATS
from precision_align.library.drawing import Family, fixed, normal, whole
from precision_align.library.formulas import Formula

FORMULA = Formula("scatter_softmax")
Tensor = torch.Tensor
family = Family(src=normal(30, 4, gain=2.0), index=whole(30, high=6), size=6, wrt=("src",))


def call_torch(src: Tensor, index: Tensor, *, size: int) -> Tensor:
    """scatter_reduce for the maxima, index_add for the sums, in float32 and back."""
    wide = src.to(src.dtype if src.dtype == torch.float64 else torch.float32)
    start = torch.full((size, src.shape[1]), -torch.inf, dtype=wide.dtype, device=src.device)
    top = start.scatter_reduce(0, index[:, None].expand(src.shape), wide.detach(), "amax")
    powers = torch.exp(wide - top[index])
    total = torch.zeros_like(start).index_add(0, index, powers)
    return (powers / total[index]).to(src.dtype)


CASES = [
    family("plain", "softmax over all rows", "basic", dtypes=FLOATS),
    family("one-group", "plain softmax over rows", "size-1", index=fixed([0] * 30), size=1),
    family("single-members", "1 each", "shape", index=fixed(list(range(30))), size=30),
    family("empty-groups", "unused groups", "empty-rows", size=50),
    family("unsorted-runs", "groups are runs of equal neighbours", "shape", index=fixed([0, 1] * 15)),
    family("large", "exp overflows without the maximum", "magnitude", src=normal(30, 4, gain=300.0), dtypes=FLOATS),
    family(
        "groups-far-apart",
        "the maximum of all: small groups underflow",
        "magnitude",
        index=fixed([0] * 15 + [1] * 15),
        src=normal(30, 4).then(lambda x: x - torch.tensor([0.0] * 15 + [300.0] * 15)[:, None]),
    ),
    family("large-group", "a short sum", "accumulation", src=normal(300, 2), index=whole(300, high=2), size=2),
    family("members-65", "one beyond a tile of 64", "tile", src=normal(65, 3), index=fixed([0] * 65), size=1),
    family("one-channel", "a single column", "size-1", src=normal(30, 1)),
    family("empty", "no member", "empty", src=normal(0, 4), index=whole(0)),
    family("nan", "NaN spoils its group only", "nonfinite", wrt=(), src=normal(30, 4).at((3, 1), math.nan)),
    *family.layouts("src"),
]

OPERATOR = FORMULA.describe(
    CASES,
    {"torch": call_torch},
    {
        "over all rows": FORMULA.edit("index[:, None] == index[None, :]", "index[:, None] >= 0 * index[None, :]"),
        "over channels": FORMULA.edit("parts.sum(dim=1)", "parts.sum(dim=(1, 2))[:, None]"),
        "maximum of all": FORMULA.edit("powers = torch.exp(x - top)", "powers = torch.exp(x - (x.detach().amax(0) if len(x) else x))"),
        "maximum not subtracted": FORMULA.edit("torch.exp(x - top)", "torch.exp(x)"),
        "not normalised": FORMULA.edit("powers / parts.sum(dim=1)", "powers + 0 * parts.sum(dim=1)"),
        "runs of neighbours": FORMULA.edit("same = index[:, None] == index[None, :]", "index = torch.cumsum(torch.cat([index[:1] * 0, (index[1:] != index[:-1]).long()]), 0)\n    same = index[:, None] == index[None, :]"),
        "a small number in the divisor": FORMULA.edit("parts.sum(dim=1)", "(parts.sum(dim=1) + 1e-2)"),
        "sum without itself": FORMULA.edit("parts.sum(dim=1)", "(parts.sum(dim=1) - 0.5 * powers)"),
        "sum in bfloat16": FORMULA.edit("parts.sum(dim=1)", "parts.sum(dim=1).bfloat16().float()"),
        "members beyond a tile of 64 lost": FORMULA.edit("parts.sum(dim=1)", "parts[:, :64].sum(dim=1)"),
        "sum without gradient": FORMULA.edit("parts.sum(dim=1)", "parts.sum(dim=1).detach()"),
        "square of exp": FORMULA.edit("torch.exp(x - top)", "torch.exp(2 * (x - top))"),
    },
)  # fmt: skip
