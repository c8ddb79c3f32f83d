"""Cases for scatter_max. Keywords: ``src`` (M, C), ``index`` (M,), ``size``. Results: maxima, rows (int64)."""

from __future__ import annotations

import torch

from precision_align.library.cases import FLOATS
from precision_align.library.drawing import Family, fixed, levels, normal, whole
from precision_align.library.formulas import Formula

FORMULA = Formula("scatter_max")
Tensor = torch.Tensor
family = Family(src=normal(30, 6), index=whole(30, high=8), size=8, wrt=("src",))


def call_torch(src: Tensor, index: Tensor, *, size: int) -> tuple[Tensor, Tensor]:
    """One comparison a member, in order."""
    best = torch.full((size, src.shape[1]), -torch.inf, dtype=src.dtype, device=src.device)
    row = torch.full((size, src.shape[1]), src.shape[0], dtype=torch.int64, device=src.device)
    for i, group in enumerate(index.tolist()):
        better = src.detach()[i] > best[group]
        best[group] = torch.where(better, src.detach()[i], best[group])
        row[group] = torch.where(better, i, row[group])
    values = torch.nn.functional.pad(src, (0, 0, 0, 1)).gather(0, row)
    return values, row


CASES = [
    family("plain", "the minimum, the first member", "basic", dtypes=FLOATS),
    family("negative", "a start of 0 instead of minus infinity", "sign", src=normal(30, 6, mean=-9.0)),
    family("empty-groups", "0 and row M", "empty-rows", size=20),
    family("ties", "of equals the first", "ties", src=levels(30, 6, low=0, high=2), exact=True),
    family("all-equal", "of equals the first", "ties", src=levels(30, 6, low=1, high=1), exact=True),
    family(
        "close-members",
        "members that differ in the last bits only",
        "magnitude",
        src=normal(30, 6, gain=0.01, mean=100.0),
        dtypes=("float32",),
    ),
    family("one-group", "the maximum of all", "size-1", index=fixed([0] * 30), size=1),
    family("single-members", "groups of one", "shape", index=fixed(list(range(30))), size=30),
    family(
        "members-65", "one beyond a tile of 64", "tile", src=normal(65, 3).at(64, 9.0), index=whole(65, high=4), size=4
    ),
    family("large", "values near the end of float16", "magnitude", src=normal(30, 6, gain=1e4), dtypes=FLOATS),
    family("one-channel", "a single column", "size-1", src=normal(30, 1)),
    family("empty", "no member", "empty", src=normal(0, 6), index=whole(0), wrt=()),
    *family.layouts("src"),
]

OPERATOR = FORMULA.describe(
    CASES,
    {"torch": call_torch},
    {
        "minimum": FORMULA.edit("x.detach()[None]", "-x.detach()[None]"),
        "of equals the last": FORMULA.edit("open_.argmax(dim=1)", "(open_.shape[1] - 1 - open_.flip(1).argmax(dim=1))"),
        "starts at 0": FORMULA.edit("padded.gather(0, row), row", "padded.gather(0, row).clamp(min=0), row"),
        "largest magnitude": FORMULA.edit("x.detach()[None]", "x.detach().abs()[None]"),
        "empty groups are -inf": FORMULA.edit("x.new_zeros(1, x.shape[1])", "x.new_full((1, x.shape[1]), -torch.inf)"),
        "empty groups have row 0": FORMULA.edit("padded.gather(0, row), row", "padded.gather(0, row), row % max(x.shape[0], 1)"),
        "empty groups have row -1": FORMULA.edit("padded.gather(0, row), row", "padded.gather(0, row), torch.where(empty, -1, row)"),
        "index one off": FORMULA.edit("index[None, :]", "((index + 1) % size)[None, :]"),
        "members beyond a tile of 64 lost": FORMULA.edit("member = torch", "index = torch.where(torch.arange(len(index)) < 64, index, -1)\n    member = torch"),
        "one row for all channels": FORMULA.edit("row = torch.where(empty", "row = row[:, :1].expand_as(row).clone()\n    row = torch.where(empty"),
        "compared in bfloat16": FORMULA.edit("x.detach()[None]", "x.detach().bfloat16().double()[None]"),
        "place within the group": FORMULA.edit("padded.gather(0, row), row", "padded.gather(0, row), row // 2"),
        "gradient to all members": FORMULA.edit("padded.gather(0, row)", "padded.gather(0, row).detach() + (member[..., None] * (x - x.detach())[None]).sum(1)"),
    },
    rule="exact",
)  # fmt: skip
