"""Cases for one GRU layer. Keywords: ``x`` (T, B, I), ``h`` (B, H), ``w_input`` (3H, I), ``w_hidden`` (3H, H),
``bias_input``, ``bias_hidden`` (3H,). Results: states, the last one."""

from __future__ import annotations

import math
from typing import Any

import torch

from precision_align.library.cases import FLOATS
from precision_align.library.drawing import Family, normal
from precision_align.library.formulas import Formula

FORMULA = Formula("gru")
Tensor = torch.Tensor


def sized(steps: int, batch: int, inputs: int, hidden: int, gain: float = 1.0) -> dict[str, Any]:
    return {
        "x": normal(steps, batch, inputs, gain=gain),
        "h": normal(batch, hidden),
        "w_input": normal(3 * hidden, inputs, gain=0.4),
        "w_hidden": normal(3 * hidden, hidden, gain=0.4),
        "bias_input": normal(3 * hidden, gain=0.3),
        "bias_hidden": normal(3 * hidden, gain=0.5),
    }


family = Family(wrt=("x", "h", "w_input", "w_hidden", "bias_input", "bias_hidden"), **sized(6, 3, 5, 4))


def call_torch(
    x: Tensor, h: Tensor, w_input: Tensor, w_hidden: Tensor, bias_input: Tensor, bias_hidden: Tensor
) -> tuple[Tensor, Tensor]:
    """torch.gru in float32 and back."""
    wide = x.dtype if x.dtype == torch.float64 else torch.float32
    weights = [part.to(wide) for part in (w_input, w_hidden, bias_input, bias_hidden)]
    states, last = torch.gru(x.to(wide), h.to(wide)[None], weights, True, 1, 0.0, False, False, False)
    return states.to(x.dtype), last[0].to(x.dtype)


CASES = [
    family("plain", "gates in another order", "basic", dtypes=FLOATS),
    family("one-step", "a single cell", "size-1", **sized(1, 3, 5, 4)),
    family("twenty-steps", "errors that grow with the steps", "accumulation", **sized(20, 2, 3, 4)),
    family("batch-1", "one sequence", "size-1", **sized(6, 1, 5, 4)),
    family("hidden-1", "one unit", "size-1", **sized(6, 3, 5, 1)),
    family("hidden-17", "not a multiple of 16", "tile", **sized(3, 2, 5, 17)),
    family("large-hidden-bias", "the reset gate multiplies the bias too", "bias", bias_hidden=normal(12, gain=3.0)),
    family("saturated", "gates near 0 and 1", "magnitude", **sized(6, 3, 5, 4, gain=20.0)),
    family("large-state", "1 - z against z h", "magnitude", h=normal(3, 4, gain=100.0)),
    family(
        "nan", "NaN spoils its sequence from there on", "nonfinite", wrt=(), x=normal(6, 3, 5).at((2, 1, 3), math.nan)
    ),
    *family.layouts("x", "w_hidden"),
]

OPERATOR = FORMULA.describe(
    CASES,
    {"torch": call_torch},
    {
        "reset and update swapped": FORMULA.edit("reset, update = torch", "update, reset = torch"),
        "update of the new state": FORMULA.edit("(1 - update) * new + update * h", "update * new + (1 - update) * h"),
        "reset before the product": FORMULA.edit("torch.tanh(n + reset * n_h)", "torch.tanh(n + (reset * h) @ w_hidden.double().T[:, -h.shape[1]:] + bias_hidden.double()[-h.shape[1]:])"),
        "bias outside the reset": FORMULA.edit("torch.tanh(n + reset * n_h)", "torch.tanh(n + reset * (n_h - bias_hidden.double()[-h.shape[1]:]) + bias_hidden.double()[-h.shape[1]:])"),
        "reset forgotten": FORMULA.edit("reset * n_h", "n_h"),
        "sigmoid for tanh": FORMULA.edit("torch.tanh(n", "torch.sigmoid(n"),
        "hidden bias forgotten": FORMULA.edit("+ bias_hidden.double()", "+ 0 * bias_hidden.double()"),
        "hard sigmoid": FORMULA.edit("torch.sigmoid(z + z_h)", "torch.nn.functional.hardsigmoid(z + z_h)"),
        "gates interleaved": FORMULA.edit("from_input.chunk(3, dim=-1)", "from_input.unflatten(-1, (-1, 3)).unbind(-1)", "from_hidden.chunk(3, dim=-1)", "from_hidden.unflatten(-1, (-1, 3)).unbind(-1)" ""),
        "new state first": FORMULA.edit("(r, z, n), (r_h, z_h, n_h)", "(n, r, z), (n_h, r_h, z_h)"),
        "state in bfloat16": FORMULA.edit("+ update * h", "+ update * h.bfloat16().double()"),
        "initial state ignored": FORMULA.edit("x.double(), h.double()", "x.double(), 0 * h.double()"),
        "last state is the first": FORMULA.edit("torch.stack(states), h", "torch.stack(states), states[0]"),
        "no gradient through time": FORMULA.edit("from_hidden = h @", "from_hidden = h.detach() @"),
    },
)  # fmt: skip
