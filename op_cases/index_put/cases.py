"""Cases for index_put. Keywords: ``x`` (M, C), ``rows`` (T,), ``values`` (T, C), ``accumulate``."""

from __future__ import annotations

import math

import torch

from precision_align.library.cases import FLOATS
from precision_align.library.drawing import Family, fixed, normal, shuffled, whole
from precision_align.library.formulas import Formula

FORMULA = Formula("index_put")
Tensor = torch.Tensor
family = Family(x=normal(9, 5), rows=whole(14, high=9), values=normal(14, 5), wrt=("x", "values"))


def call_torch(x: Tensor, rows: Tensor, values: Tensor, *, accumulate: bool = True) -> Tensor:
    """torch.Tensor.index_put in float32 and back (CUDA adds up in float32 too)."""
    wide = x.dtype if x.dtype == torch.float64 else torch.float32
    return x.to(wide).index_put((rows,), values.to(wide), accumulate).to(x.dtype)


CASES = [
    family("accumulate", "the last of equal rows for the sum", "basic", dtypes=FLOATS),
    family(
        "write",
        "added for written",
        "basic",
        rows=shuffled(9).then(lambda r: r[:6]),
        values=normal(6, 5),
        accumulate=False,
        dtypes=FLOATS,
    ),
    family(
        "all-rows",
        "every row written: nothing of x is left",
        "shape",
        rows=shuffled(9),
        values=normal(9, 5),
        accumulate=False,
    ),
    family("negative-rows", "-1 is the last row", "edge", rows=fixed([-1, 0, -9, 3, -2, 8, -1, 0, 1, 2, 3, 4, 5, 6])),
    family("one-row-always", "14 values into one row", "ties", rows=fixed([4] * 14)),
    family(
        "many-duplicates",
        "600 values into two rows: a short sum stops growing",
        "accumulation",
        rows=whole(600, high=2),
        values=normal(600, 5, mean=1.0),
    ),
    family(
        "large-row",
        "small values added to a large row one by one vanish in bfloat16",
        "magnitude",
        x=normal(9, 5, mean=200.0),
        values=normal(14, 5, gain=0.3, mean=0.5),
    ),
    family("values-65", "one beyond a tile of 64", "tile", rows=whole(65, high=9), values=normal(65, 5)),
    family("one-value", "a single row", "size-1", rows=whole(1, high=9), values=normal(1, 5)),
    family("no-value", "x unchanged", "empty-rows", rows=whole(0), values=normal(0, 5), wrt=("x",)),
    family("nan", "NaN spoils its row only", "nonfinite", wrt=(), values=normal(14, 5).at((3, 2), math.nan)),
    *family.layouts("x", "values"),
]

OPERATOR = FORMULA.describe(
    CASES,
    {"torch": call_torch},
    {
        "written always": FORMULA.set(accumulate=False),
        "added always": FORMULA.set(accumulate=True),
        "first of equal rows": FORMULA.edit("if accumulate else value", "if accumulate and row not in seen else out[row] if row in seen else value\n        seen.add(row)", "out = list", "seen: set[int] = set()\n    out = list"),
        "negative rows clamped": FORMULA.change(rows=lambda rows: rows.clamp(min=0)),
        "row one off": FORMULA.change(rows=lambda rows: (rows + 1) % 9),
        "x forgotten": FORMULA.edit("list(x.double().unbind(0))", "list((0 * x.double()).unbind(0))"),
        "sum in bfloat16": FORMULA.edit("out[row] + value", "(out[row] + value).bfloat16().float()"),
        "sum in float16": FORMULA.edit("out[row] + value", "(out[row].half() + value.half()).float()"),
        "subtracted": FORMULA.edit("out[row] + value", "out[row] - value"),
        "values beyond a tile of 64 lost": FORMULA.edit("zip(rows.tolist()", "zip(rows.tolist()[: len(rows) // 64 * 64 or len(rows)]"),
        "values reversed": FORMULA.change(values=lambda values: values.flip(0)),
        "x keeps its gradient where written": FORMULA.edit("else value", "else value + out[row] - out[row].detach()"),
        "gradient of x lost": FORMULA.edit("x.double().unbind(0)", "x.double().detach().unbind(0)"),
        "clears what it does not write": FORMULA.edit("return torch.stack(out)", "out = [o if i in set(r % 9 for r in rows.tolist()) else 0 * o for i, o in enumerate(out)]\n    return torch.stack(out)"),
    },
)  # fmt: skip
