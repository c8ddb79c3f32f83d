"""Cases for LAMB. Keywords: ``param``, ``grad``, ``first``, ``second`` (float32), ``step``, ``lr``, ``betas``, ``eps``,
``decay``. Results: parameter, moments."""

from __future__ import annotations

import math
from typing import Any

import torch

from precision_align.library.drawing import Family, fixed, normal, uniform
from precision_align.library.formulas import Formula

FORMULA = Formula("lamb", keep=(1, 2), tensor="param")
Tensor = torch.Tensor


def sized(*shape: int, gain: float = 1.0) -> dict[str, Any]:
    return {
        "param": normal(*shape),
        "grad": normal(*shape, gain=gain),
        "first": normal(*shape, gain=0.3 * gain),
        "second": uniform(*shape, low=0.01 * gain**2, high=gain**2),
    }


family = Family(step=5, lr=0.01, float32=("first", "second"), dtypes=("float32",), **sized(6, 20))


def call_torch(
    param: Tensor, grad: Tensor, first: Tensor, second: Tensor, *, step: int, lr: float = 1e-3,
    betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-6, decay: float = 0.01,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """torch.optim.Adam's direction (a step of lr 1 from zero) and linalg norms, in the moments' dtype."""
    own = torch.nn.Parameter(torch.zeros_like(first))
    own.grad = grad.to(first.dtype).clone()
    optimizer = torch.optim.Adam([own], lr=1.0, betas=betas, eps=eps, foreach=False)
    state = {"step": torch.tensor(float(step - 1)), "exp_avg": first.clone(), "exp_avg_sq": second.clone()}
    optimizer.state[own] = state
    optimizer.step()
    wide = param.to(first.dtype)
    update = torch.add(-own.detach(), wide, alpha=decay)
    norms = [float(torch.linalg.vector_norm(part)) for part in (wide, update)]
    ratio = norms[0] / norms[1] if all(norms) else 1.0
    return torch.sub(wide, update, alpha=lr * ratio).to(param.dtype), state["exp_avg"], state["exp_avg_sq"]


ZEROS = fixed([[0.0] * 20] * 6)
CASES = [
    family("plain", "the trust ratio forgotten", "basic", dtypes=("float32", "bfloat16")),
    family("step-1", "bias correction in the first step", "step", step=1, first=ZEROS, second=ZEROS),
    family("step-1000", "no correction left", "step", step=1000),
    family("no-decay", "a decay of zero", "decay", decay=0.0),
    family("decay-0.5", "decay outside the norm", "decay", decay=0.5),
    family("zero-parameter", "a norm of 0: ratio 1", "rows", param=ZEROS),
    family("zero-update", "no gradient, no moment: ratio 1", "rows", grad=ZEROS, first=ZEROS, second=ZEROS, decay=0.0),
    family("eps-large", "eps inside the root", "eps", eps=0.1, **sized(6, 20, gain=0.05)),
    family("betas", "betas swapped", "betas", betas=(0.5, 0.95)),
    family("large-gradient", "g^2 beyond float16", "magnitude", **sized(6, 20, gain=1e4)),
    family("odd-size", "a norm beyond a tile of 64", "tile", **sized(65)),
    family("scalar", "no dimension", "0-d", **sized()),
    family("nan", "NaN spoils the norm, so all", "nonfinite", grad=normal(6, 20).at((2, 3), math.nan)),
    *family.layouts("param", "grad"),
]

OPERATOR = FORMULA.describe(
    CASES,
    {"torch": call_torch},
    {
        "ratio forgotten": FORMULA.edit("lr * ratio * update", "lr * update"),
        "ratio inverted": FORMULA.edit("norm / size", "size / norm"),
        "decay outside the norm": FORMULA.edit("+ eps) + decay * p", "+ eps)", "lr * ratio * update, m", "lr * ratio * update - lr * decay * p, m"),
        "decay ignored": FORMULA.set(decay=0.0),
        "norm squared": FORMULA.edit("p.square().sum().sqrt(), update", "p.square().sum(), update"),
        "norm of the gradient": FORMULA.edit("update.square().sum().sqrt()", "g.square().sum().sqrt()"),
        "norm by row": FORMULA.edit("p.square().sum().sqrt(), update.square().sum().sqrt()", "p.square().sum(-1, keepdim=True).sqrt(), update.square().sum(-1, keepdim=True).sqrt()"),
        "norm 0 gives NaN": FORMULA.edit("torch.where((norm != 0) & (size != 0), norm / size, torch.ones_like(norm))", "norm / size"),
        "norm 0 gives 0": FORMULA.edit("torch.ones_like(norm)", "torch.zeros_like(norm)"),
        "eps inside the root": FORMULA.edit("(torch.sqrt(v / (1 - betas[1] ** step)) + eps)", "torch.sqrt(v / (1 - betas[1] ** step) + eps)"),
        "correction forgotten": FORMULA.edit("m / (1 - betas[0] ** step)", "m"),
        "betas swapped": FORMULA.edit("betas[0] * first.double() + (1 - betas[0]) * g", "betas[1] * first.double() + (1 - betas[1]) * g"),
        "ratio clipped to 10": FORMULA.edit("norm / size", "(norm / size).clamp(max=0.5)"),
        "norm in bfloat16": FORMULA.edit("p.square().sum().sqrt(), update", "p.square().sum().sqrt().bfloat16().float(), update"),
    },
)  # fmt: skip
