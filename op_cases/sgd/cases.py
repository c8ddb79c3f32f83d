"""Cases for SGD. Keywords: ``param``, ``grad``, ``buffer`` (or None), ``lr``, ``momentum``, ``dampening``, ``nesterov``,
``decay``. Results: parameter, buffer."""

from __future__ import annotations

import math
from typing import Optional

import torch

from precision_align.library.drawing import Family, normal
from precision_align.library.formulas import Formula

FORMULA = Formula("sgd")
Tensor = torch.Tensor
family = Family(
    param=normal(6, 20), grad=normal(6, 20), buffer=normal(6, 20), lr=0.1, momentum=0.9, dtypes=("float32",)
)


def call_torch(
    param: Tensor, grad: Tensor, buffer: Optional[Tensor] = None, *, lr: float, momentum: float = 0.0,
    dampening: float = 0.0, nesterov: bool = False, decay: float = 0.0,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """torch.optim.SGD on a float32 copy, and back."""
    wide = param.dtype if param.dtype == torch.float64 else torch.float32
    own = torch.nn.Parameter(param.to(wide).clone())
    options = {"momentum": momentum, "dampening": dampening, "nesterov": nesterov, "weight_decay": decay}
    optimizer = torch.optim.SGD([own], lr=lr, foreach=False, **options)
    own.grad = grad.to(wide).clone()
    if buffer is not None and momentum:
        optimizer.state[own]["momentum_buffer"] = buffer.to(wide).clone()
    optimizer.step()
    found = optimizer.state[own].get("momentum_buffer")
    found = torch.add(grad.to(wide), param.to(wide), alpha=decay) if found is None else found
    return own.detach().to(param.dtype), found.to(param.dtype)


CASES = [
    family("plain", "momentum of the new gradient", "basic", dtypes=("float32", "bfloat16")),
    family("first-step", "the buffer starts as the gradient, not dampened", "step", dampening=0.5, without=("buffer",)),
    family("no-momentum", "plain descent", "momentum", momentum=0.0),
    family("nesterov", "the look-ahead forgotten", "nesterov", nesterov=True),
    family("dampening", "dampening ignored", "dampening", dampening=0.3),
    family("decay", "decay ignored", "decay", decay=0.05),
    family("decay-nesterov", "decay outside the momentum", "decay", decay=0.05, nesterov=True),
    family("zero-gradient", "the buffer still moves it", "rows", grad=normal(6, 20).at(2, 0.0)),
    family("large", "gradients of 1e4", "magnitude", grad=normal(6, 20, gain=1e4)),
    family("odd-size", "one beyond a vector of 64", "tile", param=normal(65), grad=normal(65), buffer=normal(65)),
    family("scalar", "no dimension", "0-d", param=normal(), grad=normal(), buffer=normal()),
    family("empty", "no element", "empty", param=normal(0, 4), grad=normal(0, 4), buffer=normal(0, 4)),
    family("nan", "NaN spoils one value", "nonfinite", grad=normal(6, 20).at((2, 3), math.nan)),
    *family.layouts("param", "grad"),
]

OPERATOR = FORMULA.describe(
    CASES,
    {"torch": call_torch},
    {
        "momentum of the gradient": FORMULA.edit("momentum * buffer.double() + (1 - dampening) * g", "buffer.double() + momentum * g"),
        "momentum ignored": FORMULA.set(momentum=0.0),
        "buffer ignored": FORMULA.edit("b = g if buffer is None else", "b = g if True else"),
        "dampening ignored": FORMULA.set(dampening=0.0),
        "dampening in the first step": FORMULA.edit("b = g if buffer is None", "b = (1 - dampening) * g if buffer is None"),
        "nesterov ignored": FORMULA.set(nesterov=False),
        "nesterov always": FORMULA.edit("if nesterov else b", "if True else b"),
        "decay ignored": FORMULA.set(decay=0.0),
        "decay decoupled": FORMULA.edit("grad.double() + decay * p", "grad.double()", "return p - lr * (g +", "return p - lr * decay * p - lr * (g +"),
        "lr in the buffer": FORMULA.edit("(1 - dampening) * g", "(1 - dampening) * lr * g"),
        "sign": FORMULA.edit("return p - lr * (g + momentum", "return p + lr * (g + momentum"),
        "buffer not returned": FORMULA.edit("else b), b", "else b), grad.double()"),
        "parameter rounded first": FORMULA.edit("p = param.double()", "p = param.bfloat16().double()"),
    },
)  # fmt: skip
