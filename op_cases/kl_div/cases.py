"""Cases for kl_div. Keywords: ``log_q``, ``p`` (N, C), ``log_target``, ``reduction``."""

from __future__ import annotations

import math

import torch

from precision_align.library.cases import FLOATS
from precision_align.library.drawing import Drawn, Family, normal
from precision_align.library.formulas import Formula

FORMULA = Formula("kl_div")
Tensor = torch.Tensor


def log_rows(*shape: int, gain: float = 1.0) -> Drawn:
    return normal(*shape, gain=gain).then(lambda x: torch.log_softmax(x, dim=-1))


family = Family(log_q=log_rows(9, 16), p=log_rows(9, 16).then(torch.exp), wrt=("log_q",))


def call_torch(log_q: Tensor, p: Tensor, *, log_target: bool = False, reduction: str = "batchmean") -> Tensor:
    """torch.nn.functional.kl_div in float32 and back."""
    wide = log_q.dtype if log_q.dtype == torch.float64 else torch.float32
    own = "none" if reduction == "mean" else reduction  # PyTorch warns that it will change what "mean" does
    found = torch.nn.functional.kl_div(log_q.to(wide), p.to(wide), log_target=log_target, reduction=own)
    return (found.mean() if reduction == "mean" else found).to(log_q.dtype)


EACH = {"reduction": "none"}
CASES = [
    family("plain", "divided by all elements", "basic", dtypes=FLOATS),
    family("each", "one value an element", "basic", dtypes=FLOATS, **EACH),
    family("sum", "divided by the batch", "reduction", reduction="sum"),
    family("mean", "divided by the batch", "reduction", reduction="mean"),
    family("log-target", "probabilities for logarithms", "log", log_target=True, p=log_rows(9, 16)),
    family("log-target-each", "both gradients", "log", log_target=True, p=log_rows(9, 16), wrt=("log_q", "p"), **EACH),
    family(
        "zeros", "p = 0 gives 0, not NaN", "rows", p=log_rows(9, 16).then(torch.exp).at((slice(None), 3), 0.0), **EACH
    ),
    family(
        "equal",
        "p = q: the terms cancel",
        "ties",
        log_q=normal(9, 16, gain=0.0, mean=-math.log(16)),
        p=normal(9, 16, gain=1e-3, mean=1 / 16),
        **EACH,
    ),
    family("far", "log q of -100", "magnitude", log_q=log_rows(9, 16, gain=60.0), dtypes=FLOATS, **EACH),
    family("row-65", "one beyond a tile of 64", "tile", log_q=log_rows(3, 65), p=log_rows(3, 65).then(torch.exp)),
    family("one-row", "a batch of one", "size-1", log_q=log_rows(1, 16), p=log_rows(1, 16).then(torch.exp)),
    family("empty-each", "no row", "empty", log_q=normal(0, 16), p=normal(0, 16), **EACH),
    family("nan", "NaN spoils one value", "nonfinite", wrt=(), log_q=log_rows(9, 16).at((1, 4), math.nan), **EACH),
    *family.layouts("log_q", "p"),
]

OPERATOR = FORMULA.describe(
    CASES,
    {"torch": call_torch},
    {
        "mean for batchmean": FORMULA.edit('if reduction == "mean"', 'if reduction != "sum"'),
        "batchmean for mean": FORMULA.edit("terms.mean()", "terms.sum() / p.shape[0]"),
        "sum is divided": FORMULA.edit('if reduction == "batchmean" else 1', 'if reduction == "batchmean" else p.shape[0]'),
        "log_target ignored": FORMULA.set(log_target=False),
        "log_target always": FORMULA.set(log_target=True),
        "arguments swapped": FORMULA.edit("(torch.log(p) - log_q)", "(log_q - torch.log(p))"),
        "entropy of p forgotten": FORMULA.edit("p * (torch.log(p) - log_q)", "-p * log_q"),
        "q for log q": FORMULA.edit("torch.log(p) - log_q", "torch.log(p) - torch.exp(log_q)"),
        "0 log 0 is NaN": FORMULA.edit("p > 0", "p > -1"),
        "base 2": FORMULA.edit("(torch.log(p) - log_q)", "(torch.log2(p) - log_q / 0.6931)"),
        "difference in bfloat16": FORMULA.edit("(torch.log(p) - log_q)", "(torch.log(p).bfloat16().float() - log_q)"),
        "gradient divided by all": FORMULA.edit("terms.sum() / (p.shape[0]", "terms.sum().detach() / p.shape[0] + terms.mean() - terms.mean().detach() + 0 * terms.sum() / (p.shape[0]"),
        "target without gradient": FORMULA.edit("torch.exp(p) * (p - log_q)", "torch.exp(p.detach()) * (p - log_q)"),
    },
)  # fmt: skip
