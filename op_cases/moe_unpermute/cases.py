"""Cases for MoE unpermutation. Keywords: ``rows`` (M, H), ``places`` (T * k,), ``probs`` (T, k), ``k``."""

from __future__ import annotations

import math
from typing import Optional

import torch

from precision_align.library.cases import FLOATS
from precision_align.library.drawing import Family, normal, shuffled, uniform
from precision_align.library.formulas import Formula, load_torch_npu

FORMULA = Formula("moe_unpermute", tensor="rows")
Tensor = torch.Tensor


def sized(tokens: int, k: int, width: int = 8, kept: Optional[int] = None) -> dict[str, object]:
    count = tokens * k
    return {
        "rows": normal(count if kept is None else kept, width),
        "places": shuffled(count),
        "probs": uniform(tokens, k, low=0.05, high=0.6),
        "k": k,
    }


family = Family(wrt=("rows", "probs"), **sized(13, 2))


def call_torch(rows: Tensor, places: Tensor, probs: Optional[Tensor] = None, *, k: int) -> Tensor:
    """index_add of weighted rows by token, in float32 and back, as Megatron does."""
    wide = rows.dtype if rows.dtype == torch.float64 else torch.float32
    kept = places < rows.shape[0]
    token = torch.arange(places.shape[0], device=rows.device) // k
    found = rows.to(wide)[places[kept]]
    if probs is not None:
        found = found * probs.to(wide).flatten()[kept][:, None]
    start = torch.zeros(places.shape[0] // k, rows.shape[1], dtype=wide, device=rows.device)
    return start.index_add(0, token[kept], found).to(rows.dtype)


def call_torch_npu(rows: Tensor, places: Tensor, probs: Optional[Tensor] = None, *, k: int) -> Tensor:
    """torch_npu.npu_moe_token_unpermute(permuted_tokens, sorted_indices, probs); without probs k is 1 there."""
    if probs is None and k > 1:
        probs = torch.ones(places.shape[0] // k, k, dtype=rows.dtype, device=rows.device)
    return load_torch_npu().npu_moe_token_unpermute(rows, places.int(), probs)  # type: ignore[no-any-return]


CASES = [
    family("plain", "weights of another copy", "basic", dtypes=FLOATS),
    family("no-probs", "copies are summed, not averaged", "weight", without=("probs",)),
    family("probs-float32", "float32 weights with low-precision rows", "dtype", float32=("probs",)),
    family("top-1", "one copy", "size-1", **sized(13, 1)),
    family("top-8", "eight copies: the order of the sum", "shape", **sized(9, 8)),
    family("dropped", "places beyond the rows count nothing", "dropped", **sized(13, 2, kept=17)),
    family("zero-probs", "a weight of zero", "rows", probs=uniform(13, 2).at((slice(None), 0), 0.0)),
    family("tokens-129", "beyond two tiles of 64", "tile", **sized(129, 2, 3)),
    family("width-65", "one beyond a tile of 64", "tile", **sized(5, 2, 65)),
    family("one-token", "a single token", "size-1", **sized(1, 2)),
    family("large", "sums beyond float16", "magnitude", rows=normal(26, 8, gain=3e4), dtypes=FLOATS),
    family("empty", "no token", "empty", **sized(0, 2)),
    family("nan", "NaN spoils its token only", "nonfinite", wrt=(), rows=normal(26, 8).at((3, 4), math.nan)),
    *family.layouts("rows", "probs"),
]

OPERATOR = FORMULA.describe(
    CASES,
    {"torch": call_torch, "torch_npu": call_torch_npu},
    {
        "weights ignored": FORMULA.set(probs=None),
        "weights of the neighbour": FORMULA.change(probs=lambda probs: probs.flip(-1)),
        "averaged": FORMULA.edit("copies.sum(dim=1)", "copies.sum(dim=1) / k"),
        "normalised weights": FORMULA.edit("probs.double()[..., None]", "(probs.double() / probs.double().sum(-1, keepdim=True))[..., None]"),
        "places inverted": FORMULA.change(places=torch.argsort),
        "places ignored": FORMULA.change(places=lambda places: torch.arange(len(places))),
        "dropped copies take the last row": FORMULA.edit("places.clamp(max=rows.shape[0])", "places.clamp(max=max(rows.shape[0] - 1, 0))"),
        "first copy only": FORMULA.edit("copies.sum(dim=1)", "copies[:, 0]"),
        "copies grouped by rank": FORMULA.edit("unflatten(0, (places.shape[0] // k, k))", "unflatten(0, (k, places.shape[0] // k)).transpose(0, 1)"),
        "sum in float16": FORMULA.edit("copies.sum(dim=1)", "copies.half().sum(dim=1).float()"),
        "sum rounded to bfloat16": FORMULA.edit("copies.sum(dim=1)", "copies.bfloat16().sum(dim=1).float()"),
        "weights without gradient": FORMULA.edit("probs.double()[..., None]", "probs.detach().double()[..., None]"),
        "rows without weights in the gradient": FORMULA.edit("copies = copies * probs.double()[..., None]", "copies = copies + (copies.detach() * probs.double()[..., None] - copies.detach())"),
    },
)  # fmt: skip
