"""Cases for vocabulary-parallel cross entropy. Keywords: ``shards`` (R, T, V / R), ``target`` (T,), ``smoothing``."""

from __future__ import annotations

import math

import torch

from precision_align.library.cases import FLOATS
from precision_align.library.drawing import Family, fixed, normal, whole
from precision_align.library.formulas import Formula

FORMULA = Formula("vocab_parallel_cross_entropy")
Tensor = torch.Tensor
family = Family(shards=normal(4, 18, 12, gain=2.0), target=whole(18, high=48), wrt=("shards",))


def call_torch(shards: Tensor, target: Tensor, *, smoothing: float = 0.0) -> Tensor:
    """Rank by rank, as the ranks do: maximum, own target's logit or 0, sum of exponentials; then the reductions."""
    wide = shards.to(shards.dtype if shards.dtype == torch.float64 else torch.float32)
    top = torch.stack([part.amax(dim=-1) for part in wide]).amax(dim=0).detach()
    size, total, chosen, plain = wide.shape[2], 0.0, 0.0, 0.0
    for rank, part in enumerate(wide):
        moved = part - top[:, None]
        mine = (target >= rank * size) & (target < (rank + 1) * size)
        local = torch.where(mine, target - rank * size, 0)
        chosen = chosen + torch.where(mine, moved[torch.arange(len(target), device=target.device), local], 0.0)
        total = total + moved.exp().sum(dim=-1)
        plain = plain + moved.sum(dim=-1)
    classes = size * shards.shape[0]
    log_total = torch.log(total)  # type: ignore[arg-type]
    share = smoothing * classes / (classes - 1)
    return ((1 - share) * (log_total - chosen) + share * (log_total - plain / classes)).to(shards.dtype)


CASES = [
    family("plain", "the sum of one rank only", "basic", dtypes=FLOATS),
    family("smoothing", "PyTorch's smoothing for Megatron's", "smoothing", smoothing=0.2, dtypes=FLOATS),
    family("one-rank", "nothing is split", "size-1", shards=normal(1, 18, 48, gain=2)),
    family(
        "two-ranks-large",
        "the maximum of one rank only: exp overflows",
        "magnitude",
        shards=normal(2, 18, 24, gain=200.0),
        dtypes=FLOATS,
    ),
    family(
        "last-rank-far-above",
        "the other ranks' sums underflow",
        "magnitude",
        shards=normal(4, 18, 12).then(lambda x: x + torch.tensor([0.0, 0, 0, 60])[:, None, None]),
    ),
    family(
        "edges",
        "targets at the first and last class of each rank",
        "edge",
        target=fixed([0, 11, 12, 23, 24, 35, 36, 47] * 2 + [12, 24]),
    ),
    family("shard-65", "one beyond a tile of 64", "tile", shards=normal(2, 5, 65, gain=2), target=whole(5, high=130)),
    family("vocabulary-8000", "a vocabulary", "accumulation", shards=normal(8, 2, 1000), target=whole(2, high=8000)),
    family("one-token", "a single token", "size-1", shards=normal(4, 1, 12), target=whole(1, high=48)),
    family(
        "sure",
        "a loss near 0",
        "magnitude",
        shards=normal(4, 18, 12).at((0, slice(None), 3), 14.0),
        target=fixed([3] * 18),
    ),
    family("empty", "no token", "empty", shards=normal(4, 0, 12), target=whole(0)),
    family("nan", "NaN spoils its token only", "nonfinite", wrt=(), shards=normal(4, 18, 12).at((1, 4, 2), math.nan)),
    *family.layouts("shards"),
]

OPERATOR = FORMULA.describe(
    CASES,
    {"torch": call_torch},
    {
        "first rank only": FORMULA.edit("torch.exp(x - top).sum(", "torch.exp(x - top)[:, : shards.shape[2]].sum("),
        "shards joined in the wrong order": FORMULA.edit("shards.double()", "shards.double().flip(0)"),
        "shards interleaved": FORMULA.edit("transpose(0, 1).flatten(1)", "permute(1, 2, 0).flatten(1)"),
        "target within the rank": FORMULA.change(target=lambda target: target % 12),
        "maximum of the first rank": FORMULA.edit("x.detach().amax(", "x.detach()[:, : shards.shape[2]].amax("),
        "smoothing ignored": FORMULA.set(smoothing=0.0),
        "PyTorch's smoothing": FORMULA.edit("smoothing * classes / (classes - 1)", "smoothing"),
        "smoothing by the shard's size": FORMULA.edit("classes = x.shape[1]", "classes = shards.shape[2]"),
        "mean log probability as a sum": FORMULA.edit("logs.mean(dim=-1)", "logs.sum(dim=-1)"),
        "sign": FORMULA.after(lambda y: -y),
        "sums in bfloat16": FORMULA.edit("torch.exp(x - top).sum(dim=-1, keepdim=True)", "torch.exp(x - top).sum(dim=-1, keepdim=True).bfloat16().float()"),
        "loss averaged": FORMULA.after(lambda y: y.mean().expand_as(y) if y.numel() else y),
        "softmax without gradient": FORMULA.edit("torch.exp(x - top).sum", "torch.exp(x - top).detach().sum"),
    },
)  # fmt: skip
