"""Cases for scatter_mean. Keywords: ``src`` (M, ...), ``index`` (M,), ``size``."""

from __future__ import annotations

import math

import torch

from precision_align.library.cases import FLOATS
from precision_align.library.drawing import Family, fixed, normal, whole
from precision_align.library.formulas import Formula

FORMULA = Formula("scatter_mean")
Tensor = torch.Tensor
family = Family(src=normal(30, 6), index=whole(30, high=8), size=8, wrt=("src",))


def call_torch(src: Tensor, index: Tensor, *, size: int) -> Tensor:
    """index_add and bincount, in float32 and back."""
    wide = src.dtype if src.dtype == torch.float64 else torch.float32
    total = torch.zeros(size, *src.shape[1:], dtype=wide, device=src.device).index_add(0, index, src.to(wide))
    counts = torch.zeros(size, dtype=wide, device=src.device).index_add(0, index, torch.ones_like(index, dtype=wide))
    return (total / counts.clamp(min=1).reshape(-1, *[1] * (src.dim() - 1))).to(src.dtype)


CASES = [
    family("plain", "the sum for the mean", "basic", dtypes=FLOATS),
    family("one-group", "the mean of all", "size-1", index=fixed([0] * 30), size=1),
    family("empty-groups", "a group without members is 0, not NaN", "empty-rows", size=40),
    family("single-members", "groups of one", "shape", index=fixed(list(range(30))), size=30),
    family("unequal-groups", "divided by the same number everywhere", "shape", index=fixed([0] * 20 + [1] * 9 + [2])),
    family(
        "large-group",
        "2000 members: a short sum stops growing",
        "accumulation",
        src=normal(2000, 2, mean=1.0),
        index=whole(2000, high=2),
        size=2,
    ),
    family(
        "large",
        "the sum beyond float16, the mean within",
        "magnitude",
        src=normal(30, 6, gain=100.0, mean=3e4),
        dtypes=FLOATS,
    ),
    family("members-65", "one beyond a tile of 64", "tile", src=normal(65, 3), index=whole(65, high=4)),
    family("three-dimensions", "slices of two dimensions", "shape", src=normal(30, 2, 3)),
    family("one-dimension", "a vector", "shape", src=normal(50), index=whole(50, high=8)),
    family("nan", "NaN stays in its group", "nonfinite", wrt=(), src=normal(30, 6).at((3, 1), math.nan)),
    *family.layouts("src"),
]

OPERATOR = FORMULA.describe(
    CASES,
    {"torch": call_torch},
    {
        "the sum": FORMULA.edit("/ max(members.shape[0], 1)", ""),
        "divided by all": FORMULA.edit("max(members.shape[0], 1)", "max(x.shape[0], 1)"),
        "divided by the average group": FORMULA.edit("max(members.shape[0], 1)", "(x.shape[0] / size)"),
        "divided by n - 1": FORMULA.edit("max(members.shape[0], 1)", "max(members.shape[0] - 1, 1)"),
        "divided by n + 1": FORMULA.edit("max(members.shape[0], 1)", "(members.shape[0] + 1)"),
        "empty groups are NaN": FORMULA.edit("max(members.shape[0], 1)", "(members.shape[0] or float('nan'))"),
        "the median member": FORMULA.edit("members.sum(dim=0) / max(members.shape[0], 1)", "members[members.shape[0] // 2] if len(members) else members.sum(dim=0)"),
        "index one off": FORMULA.edit("index == group", "(index + 1) % size == group"),
        "sum in float16": FORMULA.edit("members.sum(dim=0)", "members.half().sum(dim=0).float()"),
        "running sum in bfloat16": FORMULA.edit("members.sum(dim=0)", "(members.bfloat16().cumsum(0)[-1].float() if len(members) else members.sum(dim=0))"),
        "last member lost": FORMULA.edit("members.sum(dim=0)", "members[: max(len(members) - 1, 1)].sum(dim=0)"),
        "gradient of the sum": FORMULA.edit("members.sum(dim=0) / max(members.shape[0], 1)", "members.sum(dim=0) + (members.sum(dim=0) / max(members.shape[0], 1) - members.sum(dim=0)).detach()"),
    },
)  # fmt: skip
