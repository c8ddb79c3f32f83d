"""Cases for scatter_sum. Keywords: ``src``, ``index`` (src.shape[dim],), ``size``, ``dim``."""

from __future__ import annotations

import math

import torch

from precision_align.library.cases import FLOATS
from precision_align.library.drawing import Family, fixed, normal, whole
from precision_align.library.formulas import Formula

FORMULA = Formula("scatter_add")
Tensor = torch.Tensor
family = Family(src=normal(30, 6), index=whole(30, high=8), size=8, wrt=("src",))


def call_torch(src: Tensor, index: Tensor, *, size: int, dim: int = 0) -> Tensor:
    """index_add in float32 and back: adding in bfloat16, member by member, would lose most of a large group."""
    wide = src.dtype if src.dtype == torch.float64 else torch.float32
    shape = list(src.shape)
    shape[dim] = size
    return torch.zeros(shape, dtype=wide, device=src.device).index_add(dim, index, src.to(wide)).to(src.dtype)


CASES = [
    family("plain", "the last member for the sum", "basic", dtypes=FLOATS),
    family("last-dimension", "dim 0 always", "axis", dim=1, src=normal(6, 30)),
    family("square", "dim swapped where shapes do not show it", "axis", dim=1, src=normal(30, 30)),
    family("one-group", "all into one", "size-1", index=fixed([0] * 30), size=1),
    family("empty-groups", "groups without members are 0", "empty-rows", size=40),
    family("last-group", "the last index", "edge", index=fixed([7] * 10 + [0] * 20)),
    family("all-different", "a permutation", "shape", index=fixed(list(range(29, -1, -1))), size=30),
    family(
        "large-group",
        "2000 equal members: a short sum stops growing",
        "accumulation",
        src=normal(2000, 2, mean=1.0),
        index=whole(2000, high=2),
        size=2,
    ),
    family(
        "mixed-magnitudes",
        "cancellation in the order of the sum",
        "magnitude",
        src=normal(30, 6).at(slice(None, None, 3), 300.0),
    ),
    family("members-65", "one beyond a tile of 64", "tile", src=normal(65, 3), index=whole(65, high=8)),
    family("one-dimension", "a vector", "shape", src=normal(50), index=whole(50, high=8)),
    family("empty", "no member: all 0", "empty", src=normal(0, 6), index=whole(0), wrt=()),
    family(
        "nonfinite",
        "NaN and infinity stay in their group",
        "nonfinite",
        wrt=(),
        src=normal(30, 6).at((3, 1), math.nan).at((4, 2), math.inf),
    ),
    *family.layouts("src"),
]

OPERATOR = FORMULA.describe(
    CASES,
    {"torch": call_torch},
    {
        "the last member": FORMULA.edit("parts.sum(dim=-1)", "parts.gather(-1, torch.where(member, torch.arange(member.shape[1]), 0).amax(-1).expand(parts.shape[:-1])[..., None])[..., 0] if member.shape[1] else parts.sum(dim=-1)"),
        "the mean": FORMULA.edit("parts.sum(dim=-1)", "parts.sum(dim=-1) / member.sum(-1).clamp(min=1)"),
        "the maximum": FORMULA.edit("parts.sum(dim=-1)", "parts.amax(dim=-1)" " if member.shape[1] else parts.sum(dim=-1)"),
        "first dimension always": FORMULA.edit("src.double().movedim(dim, -1)", "(src.double().movedim(0 if src.shape[0] == src.shape[-1] else dim, -1))"),
        "index one off": FORMULA.change(index=lambda index: (index + 1) % 8 if index.numel() == 0 or int(index.max()) < 8 else index),
        "last group lost": FORMULA.edit("[:, None] == index", "[:, None].clamp(max=size - 2) == index" ""),
        "empty groups keep the first": FORMULA.edit("parts.sum(dim=-1)", "torch.where(member.any(-1), parts.sum(dim=-1), moved[..., :1])" " if member.shape[1] else parts.sum(dim=-1)"),
        "running sum in bfloat16": FORMULA.edit("parts.sum(dim=-1)", "parts.bfloat16().cumsum(-1)[..., -1].float() if member.shape[1] else parts.sum(dim=-1)"),
        "sum in float16": FORMULA.edit("parts.sum(dim=-1)", "parts.half().sum(dim=-1).float()"),
        "members beyond a tile of 64 lost": FORMULA.edit("parts.sum(dim=-1)", "parts[..., : max(parts.shape[-1] // 64 * 64, 1)].sum(dim=-1)"),
        "NaN in all groups": FORMULA.edit("torch.where(member, moved[..., None, :], torch.zeros((), dtype=torch.float64, device=src.device))", "member * moved[..., None, :]"),
        "gradient of the first member only": FORMULA.edit("src.double().movedim(dim, -1)", "torch.cat([src.double().movedim(dim, -1)[..., :1], src.double().detach().movedim(dim, -1)[..., 1:]], -1)"),
        "duplicates counted once": FORMULA.edit("parts.sum(dim=-1)", "(parts * (torch.arange(member.shape[1]) == torch.where(member, torch.arange(member.shape[1]), -1).amax(-1, keepdim=True))).sum(dim=-1) if member.shape[1] else parts.sum(dim=-1)"),
    },
)  # fmt: skip
