"""Cases for Adam and AdamW. Keywords: ``param``, ``grad``, ``first``, ``second`` (moments, float32), ``step``, ``lr``,
``betas``, ``eps``, ``decay``, ``decoupled``, ``correction``, ``maximise``. Rewrites param, first, second."""

from __future__ import annotations

import math
from typing import Any

import torch

from precision_align.library.drawing import Family, fixed, normal, uniform
from precision_align.library.formulas import Formula, load_torch_npu

FORMULA = Formula("adamw", keep=(1, 2), tensor="param")
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
    betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8, decay: float = 0.0, decoupled: bool = True,
    correction: bool = True, maximise: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """torch.optim.Adam or AdamW on a state that stands at step - 1, in the moments' dtype. Without correction: by hand."""
    wide = first.dtype
    if not correction:
        g = -grad.to(wide) if maximise else grad.to(wide)
        p = param.to(wide) * (1 - lr * decay) if decoupled else param.to(wide)
        m = torch.lerp(first, g if decoupled else torch.add(g, p, alpha=decay), 1 - betas[0])
        v = second * betas[1] + (g if decoupled else torch.add(g, p, alpha=decay)).square() * (1 - betas[1])
        return torch.addcdiv(p, m, v.sqrt() + eps, value=-lr).to(param.dtype), m, v
    own = torch.nn.Parameter(param.to(wide).clone())
    kind = torch.optim.AdamW if decoupled else torch.optim.Adam
    optimizer = kind([own], lr=lr, betas=betas, eps=eps, weight_decay=decay, maximize=maximise, foreach=False)
    own.grad = grad.to(wide).clone()
    state = {"step": torch.tensor(float(step - 1)), "exp_avg": first.clone(), "exp_avg_sq": second.clone()}
    optimizer.state[own] = state
    optimizer.step()
    return own.detach().to(param.dtype), state["exp_avg"], state["exp_avg_sq"]


def call_fused(param: Tensor, grad: Tensor, first: Tensor, second: Tensor, *, step: int, **options: Any) -> None:
    """torch._fused_adamw_ or _fused_adam_, which overwrite their arguments."""
    decoupled, correction = options.pop("decoupled", True), options.pop("correction", True)
    if not correction:
        raise ValueError("the fused operators always correct the bias")
    beta1, beta2 = options.pop("betas", (0.9, 0.999))
    kernel = torch._fused_adamw_ if decoupled else torch._fused_adam_
    kernel(
        [param], [grad], [first], [second], [], [torch.tensor(float(step), device=param.device)],
        lr=options.get("lr", 1e-3), beta1=beta1, beta2=beta2, weight_decay=options.get("decay", 0.0),
        eps=options.get("eps", 1e-8), amsgrad=False, maximize=options.get("maximise", False),
    )  # fmt: skip


def call_torch_npu(param: Tensor, grad: Tensor, first: Tensor, second: Tensor, *, step: int, **options: Any) -> Any:
    """torch_npu.npu_apply_adam_w, which takes the powers of the betas; its step is the one before."""
    if not options.get("decoupled", True) or not options.get("correction", True):
        return call_torch(param, grad, first, second, step=step, **options)
    beta1, beta2 = options.get("betas", (0.9, 0.999))
    return load_torch_npu().npu_apply_adam_w(
        beta1 ** (step - 1), beta2 ** (step - 1), options.get("lr", 1e-3), options.get("decay", 0.0), beta1, beta2,
        options.get("eps", 1e-8), grad, None, False, options.get("maximise", False), out=(param, first, second),
    )  # fmt: skip


CASES = [
    family("plain", "the moments not moved", "basic", dtypes=("float32", "bfloat16")),
    family("step-1", "bias correction by step - 1: division by zero", "step", step=1),
    family("step-1000", "no bias correction left", "step", step=1000),
    family("first-ever", "zero moments", "step", step=1, first=fixed([[0.0] * 20] * 6), second=fixed([[0.0] * 20] * 6)),
    family("no-correction", "apex bias_correction=False", "correction", correction=False),
    family("decay", "decoupled decay by lr", "decay", decay=0.1),
    family("decay-l2", "decay in the gradient", "decay", decay=0.1, decoupled=False),
    family("eps-large", "eps inside the root", "eps", eps=0.1, **sized(6, 20, gain=0.05)),
    family("eps-tiny-gradient", "eps against a root of 1e-8", "eps", **sized(6, 20, gain=1e-8)),
    family("betas", "betas swapped", "betas", betas=(0.5, 0.95)),
    family("maximise", "the sign", "sign", maximise=True),
    family("bfloat16-params", "bfloat16 parameters, float32 moments", "dtype", dtypes=("bfloat16",), decay=0.1, **sized(6, 40)),
    family("zero-gradient", "moments decay, the parameter still moves", "rows", grad=normal(6, 20).at(2, 0.0)),
    family("large-gradient", "g^2 beyond float16", "magnitude", **sized(6, 20, gain=1e4)),
    family("odd-size", "one beyond a vector of 64", "tile", **sized(65)),
    family("scalar", "no dimension", "0-d", **sized()),
    family("empty", "no element", "empty", **sized(0, 4)),
    family("nan", "NaN spoils one value", "nonfinite", grad=normal(6, 20).at((2, 3), math.nan)),
    *family.layouts("param", "grad"),
]  # fmt: skip

OPERATOR = FORMULA.describe(
    CASES,
    {"torch": call_torch, "fused": call_fused, "torch_npu": call_torch_npu},
    {
        "betas swapped": FORMULA.edit("m = betas[0] * m + (1 - betas[0]) * g", "m = betas[1] * m + (1 - betas[1]) * g"),
        "beta of the new value": FORMULA.edit("m = betas[0] * m + (1 - betas[0]) * g", "m = (1 - betas[0]) * m + betas[0] * g"),
        "gradient not squared": FORMULA.edit("(1 - betas[1]) * g * g", "(1 - betas[1]) * g.abs()"),
        "step one behind": FORMULA.edit("1 - betas[0] ** step", "1 - betas[0] ** max(step - 1, 1)"),
        "step one ahead": FORMULA.edit("1 - betas[1] ** step", "1 - betas[1] ** (step + 1)"),
        "correction ignored": FORMULA.set(correction=False),
        "correction always": FORMULA.set(correction=True),
        "decay ignored": FORMULA.set(decay=0.0),
        "decoupled always": FORMULA.set(decoupled=True),
        "L2 always": FORMULA.set(decoupled=False),
        "decay without lr": FORMULA.edit("lr * decay * p", "decay * p"),
        "decay after the update": FORMULA.edit("p = p - lr * decay * p", "p = p + 0", "return p - lr", "return p - lr * (decay if decoupled else 0) * (p - lr * m) - lr"),
        "eps inside the root": FORMULA.edit("(torch.sqrt(v / scale_v) + eps)", "torch.sqrt(v / scale_v + eps)"),
        "eps before the correction": FORMULA.edit("(torch.sqrt(v / scale_v) + eps)", "((torch.sqrt(v) + eps) / scale_v**0.5)"),
        "eps 1e-8 always": FORMULA.set(eps=1e-8),
        "update by the old moments": FORMULA.edit("(m / scale_m)", "(first.double() / scale_m)"),
        "maximise ignored": FORMULA.set(maximise=False),
        "second moment in bfloat16": FORMULA.edit("torch.sqrt(v / scale_v)", "torch.sqrt(v.bfloat16().float() / scale_v)"),
        "moments not returned": FORMULA.edit("+ eps), m, v", "+ eps), first.double(), second.double()"),
        "square in float16": FORMULA.edit("g * g", "(g.half() * g.half()).float()"),
        "parameter rounded before the update": FORMULA.edit("p = p - lr * decay * p", "p = (p - lr * decay * p).bfloat16().float()"),
    },
    rewrites=("param", "first", "second"),
)  # fmt: skip
