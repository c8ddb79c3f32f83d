"""Cases for MoE permutation. Keywords: ``tokens`` (T, H), ``experts`` (T, k), ``kept``. Results: rows, places (int64)."""

from __future__ import annotations

import math
from typing import Optional

import torch

from precision_align.library.cases import FLOATS
from precision_align.library.drawing import Drawn, Family, fixed, normal
from precision_align.library.formulas import Formula, load_torch_npu

FORMULA = Formula("moe_permute")
Tensor = torch.Tensor


def choose(tokens: int, experts: int, k: int) -> Drawn:
    """k different experts a token."""
    return normal(tokens, experts).then(lambda scores: scores.topk(k, dim=-1).indices)


family = Family(tokens=normal(13, 8), experts=choose(13, 6, 2), wrt=("tokens",))


def call_torch(tokens: Tensor, experts: Tensor, *, kept: Optional[int] = None) -> tuple[Tensor, Tensor]:
    """Two stable argsorts and index_select."""
    order = torch.argsort(experts.flatten(), stable=True)
    rows = torch.arange(tokens.shape[0], device=tokens.device).repeat_interleave(experts.shape[1])[order]
    return torch.index_select(tokens, 0, rows[:kept]), torch.argsort(order, stable=True)


def call_torch_npu(tokens: Tensor, experts: Tensor, *, kept: Optional[int] = None) -> tuple[Tensor, Tensor]:
    """torch_npu.npu_moe_token_permute(tokens, indices, num_out_tokens): indices in int32."""
    rows, places = load_torch_npu().npu_moe_token_permute(tokens, experts.int(), kept)
    return rows, places.long()


CASES = [
    family("plain", "sorted by token, not by expert", "basic", dtypes=FLOATS),
    family("top-1", "one expert a token", "size-1", experts=choose(13, 6, 1)),
    family("top-4", "four copies of a token", "shape", experts=choose(13, 6, 4)),
    family(
        "all-one-expert", "equal ids: the order must be kept", "ties", experts=fixed([[2]] * 30), tokens=normal(30, 8)
    ),
    family(
        "two-experts",
        "long runs of equal ids: an unstable sort shows",
        "ties",
        tokens=normal(70, 4),
        experts=choose(70, 2, 1),
    ),
    family("kept-20", "dropped copies still have a place", "dropped", kept=20),
    family("kept-0", "all dropped", "dropped", kept=0, wrt=()),
    family("unused-experts", "ids with gaps", "empty-rows", experts=choose(13, 3, 2).then(lambda ids: ids * 40)),
    family("tokens-129", "beyond two tiles of 64", "tile", tokens=normal(129, 3), experts=choose(129, 8, 2)),
    family("one-token", "a single token", "size-1", tokens=normal(1, 8), experts=choose(1, 6, 2)),
    family("empty", "no token", "empty", tokens=normal(0, 8), experts=choose(0, 6, 2)),
    family("nan", "NaN travels along", "nonfinite", wrt=(), tokens=normal(13, 8).at((3, 4), math.nan)),
    *family.layouts("tokens"),
]

OPERATOR = FORMULA.describe(
    CASES,
    {"torch": call_torch, "torch_npu": call_torch_npu},
    {
        "not stable": FORMULA.edit("(flat[copy], copy)", "(flat[copy], -copy)"),
        "descending": FORMULA.edit("(flat[copy], copy)", "(-flat[copy], copy)"),
        "sorted by token": FORMULA.edit("(flat[copy], copy)", "(copy // experts.shape[1], flat[copy])"),
        "not sorted": FORMULA.edit("(flat[copy], copy)", "copy"),
        "places are sources": FORMULA.after(lambda y: (y[0], torch.argsort(y[1]))),
        "copy for token": FORMULA.edit("torch.div(source, experts.shape[1], rounding_mode=\"floor\")", "source.clamp(max=tokens.shape[0] - 1)"),
        "token by remainder": FORMULA.edit("torch.div(source, experts.shape[1], rounding_mode=\"floor\")", "source % tokens.shape[0]"),
        "kept ignored": FORMULA.set(kept=None),
        "places of dropped copies are -1": FORMULA.edit("[rows[:kept]], places", "[rows[:kept]], places if kept is None else torch.where(places < kept, places, -1)"),
        "first expert only": FORMULA.change(experts=lambda ids: ids[:, :1].expand(-1, ids.shape[1])),
        "gradient of the first copy only": FORMULA.edit("tokens.double()[rows[:kept]]", "torch.where((source % experts.shape[1] == 0)[:kept, None], tokens.double()[rows[:kept]], tokens.double()[rows[:kept]].detach())"),
        "rows reversed": FORMULA.after(lambda y: (y[0].flip(0), y[1])),
    },
    rule="exact",
)  # fmt: skip
