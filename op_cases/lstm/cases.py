"""Cases for one LSTM layer. Keywords: ``x`` (T, B, I), ``h``, ``c`` (B, H), ``w_input`` (4H, I), ``w_hidden`` (4H, H),
``bias`` (4H,), ``reverse``. Results: states, last hidden, last cell."""

from __future__ import annotations

import math
from typing import Any

import torch

from precision_align.library.cases import FLOATS
from precision_align.library.drawing import Family, normal
from precision_align.library.formulas import Formula

FORMULA = Formula("lstm")
Tensor = torch.Tensor


def sized(steps: int, batch: int, inputs: int, hidden: int, gain: float = 1.0) -> dict[str, Any]:
    return {
        "x": normal(steps, batch, inputs, gain=gain),
        "h": normal(batch, hidden, gain=0.5),
        "c": normal(batch, hidden),
        "w_input": normal(4 * hidden, inputs, gain=0.4),
        "w_hidden": normal(4 * hidden, hidden, gain=0.4),
        "bias": normal(4 * hidden, gain=0.3),
    }


family = Family(wrt=("x", "h", "c", "w_input", "w_hidden", "bias"), **sized(6, 3, 5, 4))


def call_torch(
    x: Tensor, h: Tensor, c: Tensor, w_input: Tensor, w_hidden: Tensor, bias: Tensor, *, reverse: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """torch.lstm in float32 and back; one bias is zero, a reversed layer gets a reversed sequence."""
    wide = x.dtype if x.dtype == torch.float64 else torch.float32
    weights = [w_input.to(wide), w_hidden.to(wide), bias.to(wide), torch.zeros_like(bias, dtype=wide)]
    sequence = x.to(wide).flip(0) if reverse else x.to(wide)
    state = (h.to(wide)[None], c.to(wide)[None])
    states, last, cell = torch.lstm(sequence, state, weights, True, 1, 0.0, False, False, False)
    return (states.flip(0) if reverse else states).to(x.dtype), last[0].to(x.dtype), cell[0].to(x.dtype)


CASES = [
    family("plain", "gates in another order", "basic", dtypes=FLOATS),
    family("reverse", "the sequence from the front", "direction", reverse=True),
    family("one-step", "a single cell", "size-1", **sized(1, 3, 5, 4)),
    family("twenty-steps", "errors that grow with the steps", "accumulation", **sized(20, 2, 3, 4)),
    family("batch-1", "one sequence", "size-1", **sized(6, 1, 5, 4)),
    family("hidden-1", "one unit", "size-1", **sized(6, 3, 5, 1)),
    family("hidden-17", "not a multiple of 16", "tile", **sized(3, 2, 5, 17)),
    family("inputs-65", "one beyond a tile of 64", "tile", **sized(3, 2, 65, 4)),
    family("saturated", "gates near 0 and 1", "magnitude", **sized(6, 3, 5, 4, gain=20.0)),
    family("large-cell", "tanh of a large cell", "magnitude", c=normal(3, 4, gain=50.0)),
    family(
        "nan", "NaN spoils its sequence from there on", "nonfinite", wrt=(), x=normal(6, 3, 5).at((2, 1, 3), math.nan)
    ),
    *family.layouts("x", "w_hidden"),
]

GATES = "i, f, g, o = gates"
OPERATOR = FORMULA.describe(
    CASES,
    {"torch": call_torch},
    {
        "input and forget swapped": FORMULA.edit(GATES, "f, i, g, o = gates"),
        "cell and output swapped": FORMULA.edit(GATES, "i, f, o, g = gates"),
        "gates i, o, f, g": FORMULA.edit(GATES, "i, o, f, g = gates"),
        "gates interleaved": FORMULA.edit("gates.chunk(4, dim=-1)", "gates.unflatten(-1, (-1, 4)).unbind(-1)"),
        "forget bias of 1 added": FORMULA.edit("torch.sigmoid(f)", "torch.sigmoid(f + 1)"),
        "bias twice": FORMULA.edit("+ bias\n", "+ 2 * bias\n"),
        "hidden from the old cell": FORMULA.edit("torch.tanh(c)\n", "torch.tanh(states[-1] if states else c)\n"),
        "sigmoid for tanh": FORMULA.edit("torch.tanh(g)", "torch.sigmoid(g)"),
        "tanh of the cell forgotten": FORMULA.edit("torch.sigmoid(o) * torch.tanh(c)", "torch.sigmoid(o) * c"),
        "reverse ignored": FORMULA.set(reverse=False),
        "states in the order of the steps": FORMULA.edit("states[::-1] if reverse else states", "states"),
        "last state of the sequence for both": FORMULA.edit("else states), h, c", "else states), states[0], c"),
        "hard sigmoid": FORMULA.edit("torch.sigmoid(i)", "torch.nn.functional.hardsigmoid(i)"),
        "cell in bfloat16": FORMULA.edit("c = torch.sigmoid(f) * c +", "c = torch.sigmoid(f) * c.bfloat16().double() +"),
        "hidden weights transposed": FORMULA.edit("h @ w_hidden.double().T", "h @ w_hidden.double().unflatten(0, (4, -1)).transpose(1, 2).flatten(0, 1).T"),
        "no gradient through time": FORMULA.edit("+ h @ w_hidden", "+ h.detach() @ w_hidden"),
        "initial state ignored": FORMULA.edit("h.double(), c.double(), bias", "0 * h.double(), 0 * c.double(), bias"),
    },
)  # fmt: skip
