"""Cases for linear + cross entropy. Keywords: ``x`` (N, H), ``weight`` (V, H), ``target``, ``bias``, ``ignore_index``,
``reduction``."""

from __future__ import annotations

from typing import Optional

import torch

from precision_align.library.cases import FLOATS
from precision_align.library.drawing import Family, normal, whole
from precision_align.library.formulas import Formula

FORMULA = Formula("fused_linear_cross_entropy")
Tensor = torch.Tensor
family = Family(
    x=normal(20, 24), weight=normal(37, 24, gain=0.3), target=whole(20, high=37), wrt=("x", "weight", "bias")
)


def call_torch(
    x: Tensor, weight: Tensor, target: Tensor, bias: Optional[Tensor] = None, *, ignore_index: int = -100,
    reduction: str = "mean",
) -> Tensor:  # fmt: skip
    """In chunks of seven rows: linear and cross_entropy in float32, sums added, so that no whole logits exist."""
    wide = x.dtype if x.dtype == torch.float64 else torch.float32
    bias = None if bias is None else bias.to(wide)
    total = torch.zeros((), dtype=wide, device=x.device)
    for rows, labels in zip(x.to(wide).split(7), target.split(7)):
        logits = torch.nn.functional.linear(rows, weight.to(wide), bias)
        total = total + torch.nn.functional.cross_entropy(logits, labels, ignore_index=ignore_index, reduction="sum")
    return (total / (target != ignore_index).sum() if reduction == "mean" else total).to(x.dtype)


HOLES = whole(20, high=37).at(slice(None, None, 3), -100)
CASES = [
    family("plain", "the sum for the mean", "basic", dtypes=FLOATS),
    family("sum", "the mean for the sum", "reduction", reduction="sum", dtypes=FLOATS),
    family("bias", "the bias forgotten", "bias", bias=normal(37)),
    family("ignored", "ignored rows counted", "ignore", target=HOLES),
    family("ignore-index-0", "another ignore_index", "ignore", ignore_index=0, target=whole(20, high=3)),
    family("one-row", "a single row", "size-1", x=normal(1, 24), target=whole(1, high=37)),
    family("two-classes", "the smallest vocabulary", "size-1", weight=normal(2, 24), target=whole(20, high=2)),
    family(
        "hidden-65",
        "one beyond a tile of 64",
        "tile",
        x=normal(9, 65),
        weight=normal(37, 65, gain=0.2),
        target=whole(9, high=37),
    ),
    family(
        "vocabulary-5000",
        "a short sum over the vocabulary",
        "accumulation",
        x=normal(3, 16),
        weight=normal(5000, 16, gain=0.1),
        target=whole(3, high=5000),
    ),
    family("large-logits", "exp overflows without the maximum", "magnitude", x=normal(20, 24, gain=60.0)),
    *family.layouts("x", "weight"),
]

OPERATOR = FORMULA.describe(
    CASES,
    {"torch": call_torch},
    {
        "sum for mean": FORMULA.set(reduction="sum"),
        "mean for sum": FORMULA.set(reduction="mean"),
        "mean over all rows": FORMULA.edit("loss / kept.sum()", "loss / kept.numel()"),
        "ignore_index -100 always": FORMULA.set(ignore_index=-100),
        "ignored rows counted as class 0": FORMULA.change(target=lambda target: target.clamp(min=0)),
        "bias forgotten": FORMULA.set(bias=None),
        "bias subtracted": FORMULA.edit("logits + bias", "logits - bias"),
        "maximum not subtracted": FORMULA.edit("logits.detach().amax(dim=-1, keepdim=True)", "0 * logits.detach()[:, :1]"),
        "logits rounded to bfloat16": FORMULA.edit("@ weight.double().T", "@ weight.double().T", "logits = logits if bias", "logits = logits.bfloat16().float()\n    logits = logits if bias"),
        "last chunk of rows dropped": FORMULA.change(target=lambda target: torch.where(torch.arange(len(target)) >= len(target) // 7 * 7, -100, target) if len(target) > 7 else target),
        "target one off": FORMULA.change(target=lambda target: torch.where(target > 0, target - 1, target)),
        "weight without gradient": FORMULA.edit("weight.double().T", "weight.double().detach().T"),
        "gradient of the last chunk only": FORMULA.edit("x.double()[kept]", "torch.cat([x.double()[kept][:-7].detach(), x.double()[kept][-7:]])"),
    },
)  # fmt: skip
