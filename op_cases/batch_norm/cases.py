"""Cases for BatchNorm. Keywords: ``x`` (N, C, ...), ``running_mean``, ``running_var``, ``weight``, ``bias`` (C,),
``training``, ``momentum``, ``eps``. Results: output, new running mean and variance (float32)."""

from __future__ import annotations

import math

import torch

from precision_align.library.cases import FLOATS
from precision_align.library.drawing import Family, normal, uniform
from precision_align.library.formulas import Formula

FORMULA = Formula("batch_norm", keep=(1, 2), tensor="x")
Tensor = torch.Tensor
STATISTICS = ("running_mean", "running_var", "weight", "bias")


def sized(*shape: int, gain: float = 1.0, mean: float = 0.0) -> dict[str, object]:
    channels = shape[1]
    return {
        "x": normal(*shape, gain=gain, mean=mean),
        "running_mean": normal(channels),
        "running_var": uniform(channels, low=0.5, high=2.0),
        "weight": normal(channels, mean=1.0, gain=0.2),
        "bias": normal(channels, gain=0.3),
    }


family = Family(wrt=("x", "weight", "bias"), float32=STATISTICS, **sized(4, 6, 5, 5))


def call_torch(
    x: Tensor, running_mean: Tensor, running_var: Tensor, weight: Tensor, bias: Tensor, *, training: bool = True,
    momentum: float = 0.1, eps: float = 1e-5,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """torch.nn.functional.batch_norm in float32 and back, on copies of the running statistics."""
    mean, variance = running_mean.clone(), running_var.clone()
    y = torch.nn.functional.batch_norm(x.to(mean.dtype), mean, variance, weight, bias, training, momentum, eps)
    return y.to(x.dtype), mean, variance


CASES = [
    family("plain", "statistics over the wrong axes", "basic", dtypes=FLOATS),
    family("evaluation", "statistics of the batch in evaluation", "mode", training=False, dtypes=FLOATS),
    family("momentum-0.5", "momentum the other way round", "momentum", momentum=0.5),
    family("momentum-0", "running statistics stay", "momentum", momentum=0.0),
    family("small", "eps 1e-3 for 1e-5", "eps", **sized(4, 6, 5, 5, gain=3e-3)),
    family("large-eps", "eps ignored", "eps", eps=0.1),
    family("two-values", "n - 1 = 1: the unbiased variance is twice the biased", "size-1", wrt=(), **sized(2, 40)),
    family("mean-30", "a one-pass variance cancels", "magnitude", **sized(4, 6, 5, 5, mean=30.0)),
    family("large", "the square overflows float16", "magnitude", dtypes=FLOATS, **sized(4, 6, 5, 5, gain=300.0)),
    family("volume", "three spatial dimensions", "shape", **sized(2, 3, 3, 4, 5)),
    family("channels-65", "one beyond a tile of 64", "tile", **sized(3, 65, 2)),
    family("empty-evaluation", "no image", "empty", training=False, **sized(0, 6, 5)),
    family("nan", "NaN spoils its channel only", "nonfinite", wrt=(), x=normal(4, 6, 5, 5).at((0, 1, 3, 3), math.nan)),
    *family.layouts("x"),
]

OPERATOR = FORMULA.describe(
    CASES,
    {"torch": call_torch},
    {
        "training always": FORMULA.edit("if training:", "if x.numel():"),
        "evaluation always": FORMULA.set(training=False),
        "momentum of the old value": FORMULA.edit("(1 - momentum) * new_mean + momentum * mean.detach()", "momentum * new_mean + (1 - momentum) * mean.detach()"),
        "momentum 0.1 always": FORMULA.set(momentum=0.1),
        "running variance biased": FORMULA.edit("* count / (count - 1)", ""),
        "output by the unbiased variance": FORMULA.edit("torch.sqrt(variance + eps)", "torch.sqrt(variance * 1.02 + eps)"),
        "eps ignored": FORMULA.set(eps=0.0),
        "eps 1e-3 always": FORMULA.set(eps=1e-3),
        "eps outside the root": FORMULA.edit("torch.sqrt(variance + eps)", "(torch.sqrt(variance) + eps)"),
        "running variance not updated": FORMULA.edit("new_mean, new_variance\n", "new_mean, new_variance\n", "return y, new_mean, new_variance", "return y, new_mean, running_var.double()"),
        "squares in float16": FORMULA.edit("(x - mean.reshape(channels)).square()", "(x - mean.reshape(channels)).half().square().float()"),
        "bias forgotten": FORMULA.edit("+ bias.double()", "+ 0 * bias.double()"),
        "variance without gradient": FORMULA.edit("torch.sqrt(variance + eps)", "torch.sqrt(variance.detach() + eps)"),
        "one mean for all channels": FORMULA.edit("mean = x.mean(dim=over)", "mean = x.mean(dim=over) * 0 + x.mean()"),
    },
)  # fmt: skip
