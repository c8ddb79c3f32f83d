"""Cases for cross entropy. Keywords: ``x`` (N, C), ``target`` (N,), ``weight`` (C,), ``ignore_index``, ``smoothing``,
``z_scale``, ``reduction``."""

from __future__ import annotations

import math
from typing import Optional

import torch

from precision_align.library.cases import FLOATS, OpCase, Search
from precision_align.library.drawing import Family, fixed, normal, uniform, whole
from precision_align.library.formulas import Formula, load_torch_npu

FORMULA = Formula("cross_entropy")
Tensor = torch.Tensor
family = Family(x=normal(24, 40, gain=2.0), target=whole(24, high=40), wrt=("x",), float32=("weight",))


def call_torch(
    x: Tensor, target: Tensor, *, weight: Optional[Tensor] = None, ignore_index: int = -100, smoothing: float = 0.0,
    z_scale: float = 0.0, reduction: str = "mean",
) -> Tensor:  # fmt: skip
    """torch.nn.functional.cross_entropy in float32 and back (autocast's choice), z-loss added."""
    wide = x.to(x.dtype if x.dtype == torch.float64 else torch.float32)
    weight = None if weight is None else weight.to(wide.dtype)
    options = {"weight": weight, "ignore_index": ignore_index, "label_smoothing": smoothing, "reduction": reduction}
    loss = torch.nn.functional.cross_entropy(wide, target, **options)
    if z_scale:
        squares = torch.logsumexp(wide, dim=-1).square() * (target != ignore_index)
        count = (target != ignore_index).sum()
        loss = loss + z_scale * {"none": squares, "sum": squares.sum(), "mean": squares.sum() / count}[reduction]
    return loss.to(x.dtype)


def call_torch_npu(x: Tensor, target: Tensor, **options: object) -> Tensor:
    """torch_npu.npu_cross_entropy_loss(...)[0]: no z-loss, and a mean of shape [1]."""
    if options.pop("z_scale", 0.0):
        return call_torch(x, target, **options)  # type: ignore[arg-type]
    options["label_smoothing"] = options.pop("smoothing", 0.0)
    loss: Tensor = load_torch_npu().npu_cross_entropy_loss(x, target, **options)[0]
    return loss if options.get("reduction") == "none" else loss.reshape(())


def make_worst(rows: int, classes: int, gain: float) -> OpCase:
    return family("searched", "the worst of sizes and a spread", reduction="none", x=normal(rows, classes, gain=gain),
                  target=whole(rows, high=classes))  # fmt: skip


EACH = {"reduction": "none"}
HOLES = whole(24, high=40).at(slice(None, None, 3), -100)
CASES = [
    family("plain", "the sum for the mean", "basic", dtypes=FLOATS),
    family("each", "one loss a row", "basic", dtypes=FLOATS, **EACH),
    family("sum", "the mean for the sum", "reduction", reduction="sum"),
    family("ignored", "ignored rows counted in the mean", "ignore", target=HOLES),
    family("ignored-each", "an ignored row is 0 and has no gradient", "ignore", target=HOLES, **EACH),
    family("ignore-index-0", "another ignore_index", "ignore", ignore_index=0, target=whole(24, high=3)),
    family("smoothing", "e / (C - 1) for e / C", "smoothing", smoothing=0.1, **EACH),
    family("smoothing-mean", "ignored rows smoothed", "smoothing", smoothing=0.3, target=HOLES),
    family("weighted", "the mean divided by the number of rows", "weight", weight=uniform(40, low=0.2, high=3)),
    family("weighted-smoothing", "smoothing without the weights", "weight", weight=uniform(40, low=0.2, high=3), smoothing=0.2, **EACH),
    family("zero-weight", "a class of weight 0", "weight", weight=uniform(40).at(slice(None, None, 2), 0.0), **EACH),
    family("z-loss", "the logsumexp not squared", "z", z_scale=0.01, **EACH),
    family("z-loss-ignored", "z-loss of ignored rows", "z", z_scale=0.01, target=HOLES),
    family("classes-1000", "more classes than a tile, not a multiple of 32", "tile", x=normal(4, 1001, gain=2), target=whole(4, high=1001)),
    family("vocabulary-9000", "a vocabulary: a short sum loses digits", "accumulation", x=normal(2, 9000), target=whole(2, high=9000), **EACH),
    family("two-classes", "the smallest choice", "size-1", x=normal(30, 2), target=whole(30, high=2)),
    family("one-row", "a single row", "size-1", x=normal(1, 40), target=whole(1, high=40)),
    family("sure", "a loss near 0: log of almost 1", "magnitude", x=normal(24, 40).at((slice(None), 0), 14.0), target=fixed([0] * 24), **EACH),
    family("large", "exp overflows without the maximum", "magnitude", x=normal(24, 40, gain=300.0), dtypes=FLOATS, **EACH),
    family("ties", "equal logits: log C", "ties", x=normal(24, 40).then(lambda x: x.round() * 0.5), **EACH),
    family("empty-each", "no row", "empty", x=normal(0, 40), target=whole(0), **EACH),
    family("nan", "NaN spoils its row only", "nonfinite", wrt=(), x=normal(24, 40).at((1, 4), math.nan), **EACH),
    *family.layouts("x"),
]  # fmt: skip

OPERATOR = FORMULA.describe(
    CASES,
    {"torch": call_torch, "torch_npu": call_torch_npu},
    {
        "sum for mean": FORMULA.edit('/ weights[index].masked_fill(~kept, 0.0).sum() if reduction == "mean"', 'if reduction == "mean"'),
        "mean for sum": FORMULA.edit('if reduction == "mean" else loss.sum()', 'if reduction == "mean" else loss.mean()'),
        "ignored rows in the mean": FORMULA.edit("weights[index].masked_fill(~kept, 0.0)", "weights[index]"),
        "ignored rows counted": FORMULA.edit(".masked_fill(~kept, 0.0)\n    if", "\n    if"),
        "ignore_index -100 always": FORMULA.edit("kept = target != ignore_index", "kept = target != -100", "index = torch.where(kept, target,", "index = torch.where(target >= 0, target,"),
        "mean by rows, not weights": FORMULA.edit("/ weights[index].masked_fill(~kept, 0.0).sum()", "/ kept.sum()"),
        "weight ignored": FORMULA.set(weight=None),
        "smoothing ignored": FORMULA.set(smoothing=0.0),
        "e / (C - 1)": FORMULA.edit("smoothing / x.shape[1]", "smoothing / (x.shape[1] - 1)"),
        "full target and smoothing": FORMULA.edit("(1 - smoothing) *", ""),
        "smoothing without weights": FORMULA.edit("each.sum(dim=-1)", "(lse - x).sum(dim=-1)"),
        "z-loss ignored": FORMULA.set(z_scale=0.0),
        "z-loss not squared": FORMULA.edit(".square()", ".abs()"),
        "maximum not subtracted": FORMULA.edit("x.detach().amax(dim=-1, keepdim=True)", "0 * x.detach().amax(dim=-1, keepdim=True)"),
        "log of the rounded softmax": FORMULA.edit("(lse - x) * weights", "-torch.log(torch.softmax(x, -1).half().float() + 1e-7) * weights"),
        "running sum in bfloat16": FORMULA.edit("torch.exp(x - top).sum(dim=-1, keepdim=True)", "torch.exp(x - top).bfloat16().cumsum(-1)[:, -1:].float()"),
        "target one off": FORMULA.change(target=lambda target: torch.where(target > 0, target - 1, target)),
        "classes of whole tiles of 64": FORMULA.edit("torch.exp(x - top)", "torch.exp(x - top)[:, : max(x.shape[1] // 64 * 64, 1)]"),
        "target's logit without gradient": FORMULA.edit("(lse - x)", "(lse - x.detach())"),
    },
    search=Search(make_worst, {"rows": (1, 8), "classes": (2, 200), "gain": (0.1, 100.0)}),
)  # fmt: skip
