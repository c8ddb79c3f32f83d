"""Cases for GroupNorm and GroupNorm + SiLU. Keywords: ``x`` (N, C, ...), ``weight``, ``bias`` (C,), ``groups``, ``eps``,
``activation``."""

from __future__ import annotations

import math
from typing import Optional

import torch

from precision_align.library.cases import FLOATS
from precision_align.library.drawing import Family, normal
from precision_align.library.formulas import Formula, load_torch_npu

FORMULA = Formula("group_norm")
Tensor = torch.Tensor
Optionally = Optional[Tensor]


def sized(*shape: int, gain: float = 1.0, mean: float = 0.0) -> dict[str, object]:
    channels = shape[1]
    return {
        "x": normal(*shape, gain=gain, mean=mean),
        "weight": normal(channels, mean=1.0, gain=0.2),
        "bias": normal(channels, gain=0.3),
    }


family = Family(wrt=("x", "weight", "bias"), groups=4, **sized(2, 12, 5, 7))


def call_torch(
    x: Tensor, weight: Optionally = None, bias: Optionally = None, *, groups: int, eps: float = 1e-5,
    activation: str = "none",
) -> Tensor:  # fmt: skip
    """torch.nn.functional.group_norm, then silu, in float32 and back, as CUDA autocast does."""
    wide = x.dtype if x.dtype == torch.float64 else torch.float32
    weight, bias = (None if part is None else part.to(wide) for part in (weight, bias))
    # contiguous: the channels-last kernel of torch's CPU takes E[x^2] - mean^2, which cancels where the mean is large
    y = torch.nn.functional.group_norm(x.to(wide).contiguous(), groups, weight, bias, eps)
    return (torch.nn.functional.silu(y) if activation == "silu" else y).to(x.dtype)


def call_torch_npu(
    x: Tensor, weight: Optionally = None, bias: Optionally = None, *, groups: int, eps: float = 1e-5,
    activation: str = "none",
) -> Tensor:  # fmt: skip
    """torch_npu.npu_group_norm_silu(...)[0] where there is a SiLU, else PyTorch's operator."""
    if activation == "none":
        return call_torch(x, weight, bias, groups=groups, eps=eps)
    return load_torch_npu().npu_group_norm_silu(x, weight, bias, groups, eps)[0]  # type: ignore[no-any-return]


CASES = [
    family("plain", "channels grouped with a stride", "basic", dtypes=FLOATS),
    family("silu", "the activation forgotten", "activation", activation="silu", dtypes=FLOATS),
    family("channels-320", "ten channels in each of 32 groups, as in diffusion models", "shape", activation="silu",
           groups=32, **sized(1, 320, 3, 3)),
    family("one-group", "LayerNorm over all", "groups", groups=1),
    family("every-channel", "InstanceNorm", "groups", groups=12),
    family("no-weight", "weight and bias left out", "weight", without=("weight", "bias")),
    family("one-dimension", "no position beside the channels", "shape", groups=2, **sized(6, 64)),
    family("three-dimensions", "a volume", "shape", groups=2, **sized(2, 4, 3, 4, 5)),
    family("small-rows", "eps 1e-6 for 1e-5", "eps", **sized(2, 12, 5, 7, gain=2e-3)),
    family("large-eps", "eps ignored", "eps", eps=0.1),
    family("mean-30", "a one-pass variance cancels", "magnitude", **sized(2, 12, 5, 7, mean=30.0)),
    family("large", "the square overflows float16", "magnitude", dtypes=FLOATS, **sized(2, 12, 5, 7, gain=300.0)),
    family("size-1", "one value a group: the bias", "size-1", groups=40, **sized(2, 40)),
    family("empty", "no image", "empty", **sized(0, 12, 5)),
    family("nan", "NaN spoils its group only", "nonfinite", wrt=(), x=normal(2, 12, 5, 7).at((0, 1, 3, 3), math.nan)),
    *family.layouts("x"),
]  # fmt: skip

MEAN = "centred.square().mean(dim=-1, keepdim=True)"
OPERATOR = FORMULA.describe(
    CASES,
    {"torch": call_torch, "torch_npu": call_torch_npu},
    {
        "channels grouped with a stride": FORMULA.change(x=lambda x: x.unflatten(1, (-1, 4)).transpose(1, 2).flatten(1, 2) if x.shape[1] % 4 == 0 else x),
        "one group always": FORMULA.set(groups=1),
        "silu forgotten": FORMULA.set(activation="none"),
        "silu always": FORMULA.set(activation="silu"),
        "silu before the weight": FORMULA.edit("(centred / torch.sqrt(variance + eps))", "torch.nn.functional.silu(centred / torch.sqrt(variance + eps))", "y * torch.sigmoid(y)", "y"),
        "eps 1e-6 always": FORMULA.set(eps=1e-6),
        "eps ignored": FORMULA.set(eps=0.0),
        "variance divided by n - 1": FORMULA.edit(MEAN, "centred.square().sum(dim=-1, keepdim=True) / max(parts.shape[-1] - 1, 1)"),
        "mean not subtracted": FORMULA.edit("parts - parts.mean(dim=-1, keepdim=True)", "parts"),
        "squares in float16": FORMULA.edit("centred.square()", "centred.half().square().float()"),
        "weight on the last axis": FORMULA.edit("y * weight.double().reshape(channels)", "y * weight.double().flip(0).reshape(channels)"),
        "bias forgotten": FORMULA.edit("y + bias.double()", "y + 0 * bias.double()"),
        "variance without gradient": FORMULA.edit("torch.sqrt(variance + eps)", "torch.sqrt(variance.detach() + eps)"),
    },
)  # fmt: skip
