"""Cases for unpad_input. Keywords: ``x`` (B, S, C), ``mask`` (B, S). Results: tokens, places, starts (int64)."""

from __future__ import annotations

import math

import torch

from precision_align.library.cases import FLOATS
from precision_align.library.drawing import Family, fixed, flags, normal
from precision_align.library.formulas import Formula

FORMULA = Formula("unpad_input")
Tensor = torch.Tensor
family = Family(x=normal(4, 9, 12), mask=flags(4, 9), wrt=("x",))


def call_torch(x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """nonzero, index_select and cumsum, as in transformers."""
    places = torch.nonzero(mask.flatten(), as_tuple=False).flatten()
    starts = torch.nn.functional.pad(torch.cumsum(mask.sum(dim=-1), dim=0), (1, 0))
    return torch.index_select(x.reshape(-1, x.shape[-1]), 0, places), places, starts


def lengths(*numbers: int) -> object:
    return fixed([[s < n for s in range(9)] for n in numbers])


CASES = [
    family("plain", "places counted within a sequence", "basic", dtypes=FLOATS),
    family("right-padding", "sequences of different lengths", "real", mask=lengths(9, 4, 1, 6)),
    family("left-padding", "padding in front", "real", mask=fixed([[s >= n for s in range(9)] for n in (0, 5, 8, 2)])),
    family("no-padding", "all kept", "shape", mask=lengths(9, 9, 9, 9)),
    family("empty-sequence", "a sequence of padding only: starts repeat", "empty-rows", mask=lengths(9, 0, 3, 0)),
    family("all-padding", "no token", "empty-rows", mask=lengths(0, 0, 0, 0), wrt=()),
    family("one-token", "one token in all", "size-1", mask=lengths(0, 0, 1, 0)),
    family("length-130", "beyond two tiles of 64", "tile", x=normal(2, 130, 5), mask=flags(2, 130)),
    family("channels-1", "one channel", "size-1", x=normal(4, 9, 1)),
    family(
        "nan-in-padding",
        "what is padded away leaves no trace",
        "nonfinite",
        mask=lengths(9, 4, 1, 6),
        x=normal(4, 9, 12).at((1, slice(4, None)), math.nan).at((0, 2), math.nan),
        wrt=(),
    ),
    *family.layouts("x"),
]

OPERATOR = FORMULA.describe(
    CASES,
    {"torch": call_torch},
    {
        "polarity": FORMULA.change(mask=lambda mask: ~mask),
        "nothing packed away": FORMULA.change(mask=torch.ones_like),
        "places within the sequence": FORMULA.edit("b * mask.shape[1] + s for", "s for"),
        "starts without the total": FORMULA.edit("range(mask.shape[0] + 1)", "range(mask.shape[0])"),
        "starts are ends": FORMULA.edit("mask.tolist()[:b])", "mask.tolist()[: b + 1])"),
        "starts are lengths": FORMULA.edit("sum(sum(row) for row in mask.tolist()[:b])", "sum(sum(row) for row in mask.tolist()[b : b + 1])"),
        "sorted by length": FORMULA.after(lambda y: (y[0].flip(0), y[1], y[2])),
        "first token of a row dropped": FORMULA.change(mask=lambda mask: mask & (torch.arange(mask.shape[1]) > 0)),
        "gradient lost": FORMULA.edit("x.double().flatten(0, 1)[index]", "x.double().flatten(0, 1)[index].detach() + 0 * x.double().sum()"),
        "as if padded right": FORMULA.change(mask=lambda mask: torch.arange(mask.shape[1]) < mask.sum(-1, keepdim=True)),
    },
    rule="exact",
)  # fmt: skip
