"""Cases for embedding. Keywords: ``index``, ``weight`` (V, C), ``padding``, ``by_frequency``."""

from __future__ import annotations

from typing import Optional

import torch

from precision_align.library.cases import FLOATS
from precision_align.library.drawing import Family, fixed, normal, whole
from precision_align.library.formulas import Formula

FORMULA = Formula("embedding")
Tensor = torch.Tensor
family = Family(index=whole(4, 7, high=10), weight=normal(10, 6), wrt=("weight",))


def call_torch(index: Tensor, weight: Tensor, *, padding: Optional[int] = None, by_frequency: bool = False) -> Tensor:
    """torch.nn.functional.embedding of the weight in float32 (its gradient adds up in the weight's dtype), and back."""
    wide = weight.to(weight.dtype if weight.dtype == torch.float64 else torch.float32)
    found = torch.nn.functional.embedding(index, wide, padding_idx=padding, scale_grad_by_freq=by_frequency)
    return found.to(weight.dtype)


CASES = [
    family("plain", "the last use for the sum of the gradients", "basic", dtypes=FLOATS),
    family("padding", "padding gets no gradient, but its row", "padding", padding=3, dtypes=FLOATS),
    family("padding-0", "padding 0 taken for none", "padding", padding=0),
    family("by-frequency", "gradients not divided", "frequency", by_frequency=True),
    family("by-frequency-padding", "both at once", "frequency", by_frequency=True, padding=2),
    family("one-token", "a single index", "size-1", index=fixed(7)),
    family("unused-rows", "rows without use have gradient 0", "empty-rows", weight=normal(40, 6)),
    family("always-one", "300 uses of one row: a short sum stops growing", "accumulation", index=fixed([5] * 300)),
    family("first-and-last", "the ends of the table", "edge", index=fixed([0, 9, 0, 9, 9])),
    family("vocabulary-1000", "a table beyond tiles", "tile", index=whole(65, high=1000), weight=normal(1000, 3)),
    family("channels-1", "one column", "size-1", weight=normal(10, 1)),
    family("empty", "no index", "empty", index=whole(0), wrt=()),
    *family.layouts("weight"),
]

OPERATOR = FORMULA.describe(
    CASES,
    {"torch": call_torch},
    {
        "index one off": FORMULA.change(index=lambda index: (index + 1) % 10),
        "padding row is zero": FORMULA.edit("return rows +", "rows = rows if padding is None else rows.masked_fill((index == padding)[..., None], 0)\n    return rows +"),
        "padding ignored": FORMULA.set(padding=None),
        "padding 0 taken for none": FORMULA.edit("padding is not None", "padding"),
        "padding always 0": FORMULA.edit("if padding is not None:", "padding = 0 if padding is None else padding\n    if padding is not None:"),
        "frequency ignored": FORMULA.set(by_frequency=False),
        "frequency always": FORMULA.set(by_frequency=True),
        "frequency of all": FORMULA.edit(".sum(dim=1).reshape(index.shape)[..., None]", ".sum(dim=1).reshape(index.shape)[..., None] * 0 + index.numel()"),
        "gradient of the last use": FORMULA.edit("(chosen * share)", "(chosen * share * ((index.flatten()[:, None] == index.flatten()).triu(1).sum(1) == 0).reshape(index.shape)[..., None])"),
        "gradient averaged": FORMULA.edit("(chosen * share)", "(chosen * share / max(index.numel(), 1))"),
        "rounded to bfloat16": FORMULA.edit("table.detach()[index]", "table.detach()[index].bfloat16().double()"),
        "scaled by the root of C": FORMULA.edit("table.detach()[index]", "table.detach()[index] * weight.shape[1] ** 0.5 if weight.shape[1] > 1 else table.detach()[index] * 1.5"),
        "gradient of a neighbour": FORMULA.edit("== index[..., None])", "== ((index + 1) % table.shape[0])[..., None])"),
    },
)  # fmt: skip
