"""Cases for the Huber loss. Keywords: ``x``, ``target``, ``delta``, ``reduction``."""

from __future__ import annotations

import math

import torch

from precision_align.library.cases import FLOATS
from precision_align.library.drawing import Family, fixed, normal
from precision_align.library.formulas import Formula

FORMULA = Formula("huber_loss")
Tensor = torch.Tensor
EACH = {"reduction": "none"}
family = Family(x=normal(8, 12), target=normal(8, 12), wrt=("x", "target"))


def call_torch(x: Tensor, target: Tensor, *, delta: float = 1.0, reduction: str = "mean") -> Tensor:
    """delta * smooth_l1_loss(beta=delta) in float32 and back: aten::huber_loss has no NPU kernel."""
    wide = x.dtype if x.dtype == torch.float64 else torch.float32
    found = torch.nn.functional.smooth_l1_loss(x.to(wide), target.to(wide), beta=delta, reduction=reduction)
    return (delta * found).to(x.dtype)


CASES = [
    family("plain", "the sum for the mean", "basic", dtypes=FLOATS),
    family("each", "no reduction", "basic", dtypes=FLOATS, **EACH),
    family("sum", "the mean for the sum", "reduction", reduction="sum"),
    family("delta-0.3", "smooth L1: not multiplied by delta", "delta", delta=0.3, **EACH),
    family("delta-5", "delta ignored", "delta", delta=5.0, **EACH),
    family(
        "at-delta",
        "both forms meet at |d| = delta",
        "ties",
        x=fixed([[1.0, -1.0, 0.0, 1.5, -1.5, 0.5]]),
        target=fixed([[0.0] * 6]),
        wrt=("x",),
        **EACH,
    ),
    family(
        "equal",
        "x = target: 0 and gradient 0",
        "rows",
        target=normal(8, 12),
        x=normal(8, 12),
        delta=2.0,
        reduction="sum",
    ),
    family("large", "d^2 beyond float16", "magnitude", x=normal(8, 12, gain=1e3), dtypes=FLOATS, **EACH),
    family(
        "small",
        "d^2 below the smallest float16",
        "magnitude",
        x=normal(8, 12, gain=1e-3),
        target=normal(8, 12, gain=1e-3),
        **EACH,
    ),
    family("row-65", "one beyond a tile of 64", "tile", x=normal(3, 65), target=normal(3, 65)),
    family("scalar", "no dimension", "0-d", x=normal(), target=normal()),
    family("empty-each", "nothing", "empty", x=normal(0, 12), target=normal(0, 12), **EACH),
    family("nan", "NaN spoils one value", "nonfinite", wrt=(), x=normal(8, 12).at((1, 2), math.nan), **EACH),
    *family.layouts("x", "target"),
]

OPERATOR = FORMULA.describe(
    CASES,
    {"torch": call_torch},
    {
        "sum for mean": FORMULA.edit('"mean": loss.mean()', '"mean": loss.sum()'),
        "mean for sum": FORMULA.edit('"sum": loss.sum()', '"sum": loss.mean()'),
        "smooth L1": FORMULA.edit("0.5 * size * size, delta * (size - 0.5 * delta)", "0.5 * size * size / delta, size - 0.5 * delta"),
        "delta 1 always": FORMULA.set(delta=1.0),
        "square always": FORMULA.edit("delta * (size - 0.5 * delta)", "0.5 * size * size"),
        "linear always": FORMULA.edit("0.5 * size * size,", "delta * (size - 0.5 * delta),"),
        "half forgotten": FORMULA.edit("0.5 * size * size", "size * size"),
        "a jump at delta": FORMULA.edit("(size - 0.5 * delta)", "size"),
        "square in float16": FORMULA.edit("0.5 * size * size", "0.5 * (size.half() * size.half()).float()"),
        "target without gradient": FORMULA.edit("target.double()", "target.double().detach()"),
        "gradient not clipped": FORMULA.edit("delta * (size - 0.5 * delta)", "(delta * (size - 0.5 * delta)).detach() + 0.5 * size * size - (0.5 * size * size).detach()"),
        "difference in bfloat16": FORMULA.edit("x.double() - target.double()", "(x.double() - target.double()).bfloat16().float()"),
    },
)  # fmt: skip
