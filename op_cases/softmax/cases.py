"""Cases for softmax and log-softmax. Keywords: ``x`` (any shape), ``dim``, ``log``."""

from __future__ import annotations

import math
from typing import Any

import torch

from precision_align.library.cases import FLOATS, OpCase, Search
from precision_align.library.drawing import Family, levels, normal
from precision_align.library.formulas import Formula

FORMULA = Formula("softmax")
family = Family(x=normal(4, 8, 64, gain=3.0), wrt=("x",))


def call_torch(x: torch.Tensor, *, dim: int = -1, log: bool = False) -> torch.Tensor:
    """torch.nn.functional.softmax, and log_softmax in float32 (autocast's choice; the CPU kernel rounds its sums)."""
    wide = x if x.dtype == torch.float64 else x.float()
    return torch.nn.functional.log_softmax(wide, dim).to(x.dtype) if log else torch.nn.functional.softmax(x, dim)


class Saved(torch.autograd.Function):
    """Softmax whose gradient comes from the output as it was rounded and saved: what PyTorch's own kernels do."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, dim: int) -> torch.Tensor:
        y = torch.softmax(x.float(), dim).to(x.dtype)
        ctx.save_for_backward(y)
        ctx.dim = dim
        return y

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        (y,) = ctx.saved_tensors
        pulled = gradient.float() * y.float()
        return (pulled - y.float() * pulled.sum(ctx.dim, keepdim=True)).to(y.dtype), None


def compute_saved(x: torch.Tensor, *, dim: int = -1, log: bool = False) -> torch.Tensor:
    """:class:`Saved`; log-softmax in float32."""
    result: torch.Tensor = call_torch(x, dim=dim, log=log) if log or x.dim() == 0 else Saved.apply(x, dim)  # type: ignore[no-untyped-call]
    return result


def make_worst(rows: int, size: int, gain: float) -> OpCase:
    return family("searched", "the worst of a size and a spread", x=normal(rows, size, gain=gain))


INF = math.inf
hidden = normal(5, 40).then(lambda x: x.masked_fill(torch.arange(40) % 3 == 1, -INF))
CASES = [
    family("plain", "the wrong axis, no normalisation", "basic", dtypes=FLOATS),
    family("log", "softmax for log-softmax", "basic", log=True, dtypes=FLOATS),
    family("first-dimension", "dim ignored", "axis", dim=0),
    family("middle-dimension", "dim ignored", "axis", dim=1, log=True),
    family("row-65", "one beyond a tile of 64", "tile", x=normal(6, 65)),
    family("row-577", "more than 512 in two blocks: the running maximum is merged", "tile", x=normal(3, 577).at((0, slice(560, None)), 200.0)),
    family("row-20", "not a multiple of 16", "tile", x=normal(9, 20)),
    family("row-1", "a single element: 1, gradient 0", "size-1", x=normal(30, 1)),
    family("scalar", "no dimension at all", "size-1", "0-d", x=normal()),
    family("empty", "no row", "empty", x=normal(0, 7)),
    family("large", "scores of 300: exp overflows without the maximum", "magnitude", x=normal(6, 48, gain=300)),
    family("large-log", "exp overflows without the maximum", "magnitude", x=normal(6, 48, gain=300), log=True),
    family("half-range", "up to 60000, near the end of float16", "magnitude", x=normal(6, 48, gain=2e4),
           dtypes=("float16",)),
    family("flat-4096", "equal weights: a short sum loses most of them", "accumulation", x=normal(2, 4096, gain=1e-3)),
    family("far-down-log", "log of an underflowed weight is -inf", "magnitude", log=True,
           x=normal(6, 48).at((slice(None), 3), 150.0)),
    family("ties", "equal maxima share", "ties", x=levels(6, 33, low=-2, high=2)),
    family("minus-infinity", "a third is masked out: weight 0, no NaN", "masked", x=hidden),
    family("row-masked", "a row of minus infinity is NaN in PyTorch", "nonfinite", "masked", wrt=(),
           x=normal(5, 40).at(2, -INF)),
    family("nan", "NaN spoils its own row only", "nonfinite", wrt=(), x=normal(5, 40).at((1, 3), math.nan)),
    family("subnormal", "values below the smallest normal number", "magnitude", x=normal(6, 48, gain=1e-39),
           dtypes=("float32",)),
    *family.layouts("x"),
]  # fmt: skip

OPERATOR = FORMULA.describe(
    CASES,
    {"torch": call_torch},
    {
        "last axis always": FORMULA.set(dim=-1),
        "log ignored": FORMULA.set(log=False),
        "log always": FORMULA.set(log=True),
        "maximum not subtracted": FORMULA.edit("x - x.detach().amax(dim=dim, keepdim=True)", "x"),
        "maximum of the whole tensor": FORMULA.edit("amax(dim=dim, keepdim=True)", "amax()"),
        "sum of the whole tensor": FORMULA.edit("powers.sum(dim=dim, keepdim=True)", "powers.sum()"),
        "maximum of the first 512": FORMULA.edit("x.detach().amax(", "x.detach()[..., :512].amax("),
        "sum of whole tiles of 16": FORMULA.edit(
            "powers.sum(dim", "powers[..., :max(1, x.shape[-1] // 16 * 16)].sum(dim"),
        "sum without gradient": FORMULA.edit("powers.sum(dim=dim, keepdim=True)", "powers.detach().sum(dim=dim, keepdim=True)"),
        "log of the rounded weight": FORMULA.edit("shifted - torch.log(total)", "torch.log(powers / total)"),
        "running sum in bfloat16": FORMULA.edit("powers.sum(dim=dim, keepdim=True)", "powers.bfloat16().cumsum(dim).narrow(dim, -1, 1).float()"),
        "base 2 without its factor": FORMULA.edit("torch.exp(shifted)", "torch.exp2(shifted)"),
        "masked rows give zeros": FORMULA.after(lambda y: torch.nan_to_num(y, nan=0.0)),
        "weights below 1e-4 cut": FORMULA.edit("torch.exp(shifted)", "torch.exp(shifted) * (shifted > -9)"),
    },
    natives=[compute_saved],
    search=Search(make_worst, {"rows": (1, 8), "size": (1, 200), "gain": (1e-3, 1e3)}),
)  # fmt: skip
