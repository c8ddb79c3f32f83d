"""Cases for clip_grad_norm_. Keywords: ``first``, ``second`` (gradients), ``maximum``, ``power``, ``eps``."""

from __future__ import annotations

import math

import torch

from precision_align.library.drawing import Family, fixed, normal
from precision_align.library.formulas import Formula

FORMULA = Formula("grad_norm", keep=(2,))
Tensor = torch.Tensor
family = Family(first=normal(6, 20), second=normal(33), dtypes=("float32",))


def call_torch(
    first: Tensor, second: Tensor, *, maximum: float = 1.0, power: float = 2.0, eps: float = 1e-6
) -> tuple[Tensor, Tensor, Tensor]:
    """torch.nn.utils.clip_grad_norm_ on float32 copies (its eps is 1e-6, so another one is given to it as a factor)."""
    wide = first.dtype if first.dtype == torch.float64 else torch.float32
    parameters = [torch.nn.Parameter(torch.zeros_like(part, dtype=wide)) for part in (first, second)]
    for parameter, gradient in zip(parameters, (first, second)):
        parameter.grad = gradient.to(wide).clone()
    norm = torch.nn.utils.clip_grad_norm_(parameters, maximum, power, foreach=False)
    one, two = (parameter.grad.to(first.dtype) for parameter in parameters if parameter.grad is not None)
    return one, two, norm.reshape(())


CASES = [
    family("plain", "a norm for each tensor", "basic", dtypes=("float32", "bfloat16")),
    family("below", "not clipped: a factor of 1, not more", "edge", maximum=100.0),
    family("maximum-0.1", "maximum ignored", "scale", maximum=0.1),
    family("power-1", "the 2-norm always", "power", power=1.0),
    family("power-3", "the 2-norm always", "power", power=3.0),
    family("power-infinity", "the largest value", "power", power=math.inf),
    family(
        "tiny",
        "eps against a norm of 1e-6",
        "eps",
        first=normal(6, 20, gain=1e-7),
        second=normal(33, gain=1e-7),
        maximum=1e-7,
    ),
    family("zero", "all zero: stays zero, no NaN", "rows", first=fixed([[0.0] * 4] * 3), second=fixed([0.0] * 5)),
    family("large", "squares beyond float16", "magnitude", first=normal(6, 20, gain=1e4)),
    family("one-far-larger", "one tensor carries the norm", "magnitude", second=normal(33, gain=1e3)),
    family("many", "a short sum of squares", "accumulation", first=normal(40, 200), second=normal(1)),
    family("one-value", "two tensors of one", "size-1", first=normal(1), second=normal(1)),
    family("empty-second", "one tensor is empty", "empty", second=normal(0)),
    family("nan", "NaN spoils all", "nonfinite", first=normal(6, 20).at((2, 3), math.nan)),
    *family.layouts("first"),
]

OPERATOR = FORMULA.describe(
    CASES,
    {"torch": call_torch},
    {
        "norm of the first only": FORMULA.edit("torch.cat([first.double().flatten(), second.double().flatten()])", "first.double().flatten()"),
        "norms added": FORMULA.edit("norm = parts.amax()", "norm = first.double().norm() + second.double().norm() if power == 2 else parts.amax()"),
        "power 2 always": FORMULA.set(power=2.0),
        "root forgotten": FORMULA.edit(".pow(1.0 / power)", ""),
        "enlarged below the maximum": FORMULA.edit("torch.clamp(maximum / (norm + eps), max=1.0)", "maximum / (norm + eps)"),
        "maximum 1 always": FORMULA.set(maximum=1.0),
        "eps forgotten": FORMULA.set(eps=0.0),
        "factor for the first only": FORMULA.edit("second.double() * factor", "second.double()"),
        "norm after clipping": FORMULA.edit("* factor, norm", "* factor, norm * factor"),
        "squares in float16": FORMULA.edit("parts.pow(power)", "parts.half().pow(power).float()"),
        "running sum in bfloat16": FORMULA.edit("parts.pow(power).sum()", "parts.pow(power).bfloat16().cumsum(0)[-1].float()"),
        "norm in bfloat16": FORMULA.edit("torch.clamp(maximum / (norm + eps)", "torch.clamp(maximum / (norm.bfloat16().float() + eps)"),
        "normalised, then scaled": FORMULA.edit("torch.clamp(maximum / (norm + eps), max=1.0)", "torch.clamp(norm, max=maximum) / norm"),
        "infinity is the sum": FORMULA.edit("parts.amax()", "parts.sum()"),
    },
)  # fmt: skip
