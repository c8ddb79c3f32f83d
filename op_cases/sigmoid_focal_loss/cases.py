"""Cases for the sigmoid focal loss. Keywords: ``x``, ``target`` (0 or 1, same shape), ``alpha``, ``gamma``."""

from __future__ import annotations

import math

import torch

from precision_align.library.cases import FLOATS
from precision_align.library.drawing import Family, flags, normal
from precision_align.library.formulas import Formula

FORMULA = Formula("sigmoid_focal_loss")
Tensor = torch.Tensor


def sized(*shape: int, gain: float = 2.0) -> dict[str, object]:
    return {"x": normal(*shape, gain=gain), "target": flags(*shape, share=0.3).then(lambda mask: mask.float())}


family = Family(wrt=("x",), **sized(12, 20))


def call_torch(x: Tensor, target: Tensor, *, alpha: float = 0.25, gamma: float = 2.0) -> Tensor:
    """binary_cross_entropy_with_logits times (1 - p)^gamma, in float32 and back, as torchvision does."""
    wide = x.dtype if x.dtype == torch.float64 else torch.float32
    x_wide, t = x.to(wide), target.to(wide)
    wrong = torch.where(t == 1, torch.sigmoid(-x_wide), torch.sigmoid(x_wide))  # 1 - p without cancellation
    loss = torch.nn.functional.binary_cross_entropy_with_logits(x_wide, t, reduction="none") * wrong**gamma
    return (torch.where(t == 1, alpha, 1 - alpha) * loss if alpha >= 0 else loss).to(x.dtype)


CASES = [
    family("plain", "alpha on the wrong class", "basic", dtypes=FLOATS),
    family("gamma-0", "weighted cross entropy", "gamma", gamma=0.0),
    family("gamma-1.5", "gamma 2 always", "gamma", gamma=1.5),
    family("alpha-0.75", "alpha 0.25 always", "alpha", alpha=0.75),
    family("no-alpha", "alpha -1 is no weighting", "alpha", alpha=-1.0),
    family("large", "log of a sigmoid that is 0", "magnitude", dtypes=FLOATS, **sized(12, 20, gain=60.0)),
    family("sure", "1 - p cancels where p is near 1", "magnitude", x=normal(12, 20, mean=9.0)),
    family("row-65", "one beyond a vector of 64", "tile", **sized(4, 65)),
    family("single", "one value", "size-1", **sized(1)),
    family("scalar", "no dimension", "0-d", **sized()),
    family("empty", "no box", "empty", **sized(0, 20)),
    family("nan", "NaN spoils one value", "nonfinite", wrt=(), x=normal(12, 20).at((1, 4), math.nan)),
    *family.layouts("x", "target"),
]

OPERATOR = FORMULA.describe(
    CASES,
    {"torch": call_torch},
    {
        "alpha on the wrong class": FORMULA.edit("alpha * target + (1 - alpha) * (1 - target)", "(1 - alpha) * target + alpha * (1 - target)"),
        "alpha ignored": FORMULA.set(alpha=-1.0),
        "alpha 0.25 always": FORMULA.set(alpha=0.25),
        "alpha for both": FORMULA.edit("alpha * target + (1 - alpha) * (1 - target)", "alpha"),
        "gamma 2 always": FORMULA.set(gamma=2.0),
        "gamma ignored": FORMULA.set(gamma=0.0),
        "p^gamma": FORMULA.edit("torch.clamp(-right, max=0.0)", "torch.clamp(right, max=0.0)"),
        "log of the sigmoid": FORMULA.edit("torch.clamp(right, max=0.0) - torch.log1p(torch.exp(-right.abs()))\n", "torch.log(torch.sigmoid(right) + 1e-12)\n"),
        "1 - p by subtraction in bfloat16": FORMULA.edit("torch.exp(gamma * (torch.clamp(-right, max=0.0) - torch.log1p(torch.exp(-right.abs()))))", "(1 - torch.sigmoid(right).bfloat16().float()) ** gamma"),
        "target ignored": FORMULA.edit("x * (2 * target - 1)", "x"),
        "sign": FORMULA.edit("loss = -torch", "loss = torch"),
        "factor without gradient": FORMULA.edit("* log_p", "* log_p.detach()"),
        "modulation without gradient": FORMULA.edit("torch.clamp(-right, max=0.0)", "torch.clamp(-right, max=0.0).detach()"),
    },
)  # fmt: skip
