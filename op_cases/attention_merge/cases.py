"""Cases for merging partial attention. Keywords: ``output``, ``other`` (B, S, N, D), ``lse``, ``other_lse`` (B, N, S) in
float32. Results: output, logsumexp (float32)."""

from __future__ import annotations

import math

import torch

from precision_align.library.cases import FLOATS
from precision_align.library.drawing import Family, derived, normal
from precision_align.library.formulas import Formula

FORMULA = Formula("attention_merge", keep=(1,))
Tensor = torch.Tensor


def sized(*shape: int, gain: float = 2.0, apart: float = 0.0) -> dict[str, object]:
    """``apart``: how far the second logsumexp lies above the first."""
    batch, length, heads, _ = shape
    return {
        "output": normal(*shape),
        "lse": normal(batch, heads, length, gain=gain),
        "other": normal(*shape),
        "other_lse": normal(batch, heads, length, gain=gain, mean=apart),
    }


family = Family(wrt=("output", "other"), float32=("lse", "other_lse"), **sized(2, 9, 3, 16))


def call_torch(output: Tensor, lse: Tensor, other: Tensor, other_lse: Tensor) -> tuple[Tensor, Tensor]:
    """torch.softmax over the two logsumexps, torch.logaddexp. (One sigmoid and its rest to 1 loses digits: 1 - gate.)"""
    both = torch.stack([lse, other_lse])
    dead = torch.isinf(both).all(dim=0)
    shares = torch.softmax(both.masked_fill(dead, 0.0), dim=0).masked_fill(dead, 0.0)
    results = torch.stack([output, other]).to(shares.dtype)
    merged = torch.einsum("rbnsd,rbns->bsnd", results.transpose(2, 3), shares)
    return merged.to(output.dtype), torch.logaddexp(lse, other_lse)


NOTHING = normal(2, 3, 9).at((slice(None), 1, slice(None, None, 2)), -math.inf)
CASES = [
    family("plain", "weights swapped, or one half each", "basic", dtypes=FLOATS),
    family("second-far-above", "all weight on one side", "magnitude", **sized(2, 9, 3, 16, apart=60.0)),
    family("large", "exp overflows without the maximum", "magnitude", **sized(2, 9, 3, 16, gain=300.0), dtypes=FLOATS),
    family("far-down", "logsumexp of -200: both sums underflow", "magnitude", lse=normal(2, 3, 9, mean=-200.0),
           other_lse=normal(2, 3, 9, mean=-200.0)),
    family("equal", "equal shares", "ties", other_lse=derived(torch.clone, "lse"), wrt=("output",)),
    family("first-empty", "a set without keys has no weight", "masked", lse=NOTHING),
    family("second-empty", "a set without keys has no weight", "masked", other_lse=NOTHING),
    family("both-empty", "no key in either: zeros and minus infinity", "masked", lse=NOTHING, other_lse=derived(torch.clone, "lse"), wrt=()),
    family("length-65", "one beyond a tile of 64", "tile", **sized(1, 65, 2, 20)),
    family("one-token", "one of everything", "size-1", **sized(1, 1, 1, 1)),
    family("empty", "no batch", "empty", **sized(0, 9, 3, 16)),
    *family.layouts("output", "other"),
]  # fmt: skip

OPERATOR = FORMULA.describe(
    CASES,
    {"torch": call_torch},
    {
        "weights swapped": FORMULA.edit("share * output + rest * other", "rest * output + share * other"),
        "one half each": FORMULA.edit("share * output + rest * other", "0.5 * output + 0.5 * other"),
        "not normalised": FORMULA.edit("(part / safe)", "(part / safe.detach() * safe)"),
        "maximum of the first": FORMULA.edit("torch.maximum(lse, other_lse).detach()", "lse.detach()"),
        "maximum not subtracted": FORMULA.edit("torch.maximum(lse, other_lse).detach()", "torch.zeros_like(lse)"),
        "logsumexp of the larger": FORMULA.edit("torch.log(total) + top", "torch.maximum(lse, other_lse)"),
        "logsumexp without the maximum": FORMULA.edit("torch.log(total) + top", "torch.log(total)"),
        "base 2": FORMULA.edit("torch.exp(lse - top), torch.exp(other_lse - top)", "torch.exp2(lse - top), torch.exp2(other_lse - top)"),
        "empty sets give NaN": FORMULA.edit("torch.where(torch.isinf(top), torch.zeros_like(top), top)", "top"),
        "logsumexp in bfloat16": FORMULA.edit("torch.exp(lse - top)", "torch.exp((lse - top).bfloat16().float())"),
        "heads and tokens swapped": FORMULA.edit(".transpose(1, 2)[..., None]", ".flip(1).transpose(1, 2)[..., None]"),
        "gradient to the first only": FORMULA.edit("rest * other", "rest * other.detach()"),
    },
)  # fmt: skip
