"""Every wrong RMSNorm is caught by a case, every conforming one passes them all."""

from __future__ import annotations

from typing import Any

import pytest
import torch

Tensor = torch.Tensor


def mean_square(x: Tensor) -> Tensor:
    return x.square().mean(dim=-1, keepdim=True)


class Variant:
    """The right norm with one thing changed: the statistic, eps, the weight, what is done with x or with the result."""

    def __init__(self, **changes: Any) -> None:
        self.changes = changes

    def __call__(self, x: Tensor, weight: Tensor | None = None, *, eps: float = 1e-6, offset: float = 0.0) -> Tensor:
        change = self.changes
        wide = change.get("input", lambda value: value)(x.float())
        eps = change.get("eps", lambda value: value)(eps)
        inverse = change.get("inverse", lambda ms, e: torch.rsqrt(ms + e))(
            change.get("statistic", mean_square)(wide), eps
        )
        y = wide * inverse
        if weight is not None:
            y = y * change.get("weight", lambda w, o: w.float() + o)(weight, offset)
        result: Tensor = change.get("output", lambda value, x: value.to(x.dtype))(y, x)
        return result


def sum_low(x: Tensor, dtype: torch.dtype) -> Tensor:
    """A running sum of squares kept in a low dtype, eight elements at a time."""
    total = torch.zeros(*x.shape[:-1], 1)
    for part in x.square().split(8, dim=-1):
        total = (total + part.sum(dim=-1, keepdim=True)).to(dtype).float()
    return total / x.shape[-1]


def tail_dropped(multiple: int) -> Any:
    """Statistics without the elements beyond the last whole tile, counted as if they were there."""

    def statistic(x: Tensor) -> Tensor:
        whole = x.shape[-1] // multiple * multiple or x.shape[-1]
        return x[..., :whole].square().sum(dim=-1, keepdim=True) / x.shape[-1]

    return statistic


def neighbour(x: Tensor) -> Tensor:
    """The statistic of the row before."""
    return mean_square(x).roll(1, -2) if x.dim() > 1 else mean_square(x)


def ignore_strides(x: Tensor, weight: Tensor | None = None, **options: Any) -> Tensor:
    strides = torch.empty(x.shape, device="meta").stride()
    return Variant()(x.as_strided(x.shape, strides, x.storage_offset()), weight, **options)


def ignore_weight_strides(x: Tensor, weight: Tensor | None = None, **options: Any) -> Tensor:
    return Variant()(
        x, None if weight is None else weight.as_strided(weight.shape, (1,), weight.storage_offset()), **options
    )


def without_projection(x: Tensor, weight: Tensor | None = None, **options: Any) -> Tensor:
    """The gradient takes the statistic for a constant."""
    return Variant(inverse=lambda ms, e: torch.rsqrt(ms + e).detach())(x, weight, **options)


def detach_weight(x: Tensor, weight: Tensor | None = None, **options: Any) -> Tensor:
    return Variant()(x, None if weight is None else weight.detach(), **options)


class LowWeightGradient(torch.autograd.Function):
    """The weight's gradient is a running sum over rows in bfloat16."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(y, weight)
        return y * weight

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        y, weight = ctx.saved_tensors
        total = torch.zeros(weight.shape, dtype=torch.bfloat16)
        for row in (gradient * y).reshape(-1, weight.numel()):
            total = total + row.bfloat16()
        return gradient * weight, total.float()


def sum_weight_gradient_low(
    x: Tensor, weight: Tensor | None = None, *, eps: float = 1e-6, offset: float = 0.0
) -> Tensor:
    wide = x.float()
    y = wide * torch.rsqrt(mean_square(wide) + eps)
    return (y if weight is None else LowWeightGradient.apply(y, weight.float() + offset)).to(x.dtype)


def rewrite_input(x: Tensor, weight: Tensor | None = None, **options: Any) -> Tensor:
    y = Variant()(x.clone(), weight, **options)
    with torch.no_grad():
        x.detach().copy_(y)
    return y


def half_square(x: Tensor) -> Tensor:
    """Squares in float16: overflow above 256, underflow below 2^-12."""
    return x.half().square().float().mean(dim=-1, keepdim=True)


WRONG = {
    "eps 1e-5 always": Variant(eps=lambda eps: 1e-5),
    "eps 1e-6 always": Variant(eps=lambda eps: 1e-6),
    "eps of the dtype always": Variant(eps=lambda eps: torch.finfo(torch.float32).eps),
    "eps ignored": Variant(eps=lambda eps: 0.0),
    "eps outside the root": Variant(inverse=lambda ms, e: 1 / (ms.sqrt() + e)),
    "root forgotten": Variant(inverse=lambda ms, e: 1 / (ms + e)),
    "sum for mean": Variant(statistic=lambda x: x.square().sum(dim=-1, keepdim=True)),
    "divided by n - 1": Variant(statistic=lambda x: x.square().sum(dim=-1, keepdim=True) / max(x.shape[-1] - 1, 1)),
    "mean subtracted": Variant(input=lambda x: x - x.mean(dim=-1, keepdim=True)),
    "variance for mean square": Variant(statistic=lambda x: x.var(dim=-1, keepdim=True, unbiased=False)),
    "other axis": Variant(statistic=lambda x: x.square().mean(dim=0, keepdim=True) if x.numel() else mean_square(x)),
    "statistic of the neighbour": Variant(statistic=neighbour),
    "weight ignored": Variant(weight=lambda w, o: 1.0),
    "offset ignored": Variant(weight=lambda w, o: w.float()),
    "offset always": Variant(weight=lambda w, o: w.float() + 1.0),
    "weight rounded to bfloat16": Variant(weight=lambda w, o: w.bfloat16().float() + o),
    "squares in float16": Variant(statistic=half_square),
    "running sum in bfloat16": Variant(statistic=lambda x: sum_low(x, torch.bfloat16)),
    "running sum in float16": Variant(statistic=lambda x: sum_low(x, torch.float16)),
    "statistic rounded to bfloat16": Variant(statistic=lambda x: mean_square(x).bfloat16().float()),
    "tail beyond a tile of 64": Variant(statistic=tail_dropped(64)),
    "tail beyond a tile of 16": Variant(statistic=tail_dropped(16)),
    "strides of x ignored": ignore_strides,
    "strides of the weight ignored": ignore_weight_strides,
    "result in float32": Variant(output=lambda y, x: y),
    "NaN becomes 0": Variant(output=lambda y, x: torch.nan_to_num(y, nan=0.0).to(x.dtype)),
    "gradient without the projection": without_projection,
    "no gradient for the weight": detach_weight,
    "weight's gradient summed in bfloat16": sum_weight_gradient_low,
    "input rewritten": rewrite_input,
    "transposed": Variant(output=lambda y, x: y.to(x.dtype).transpose(0, -1)),
}


def sum_backwards(x: Tensor) -> Tensor:
    return x.flip(-1).square().cumsum(dim=-1)[..., -1:] / x.shape[-1]


def in_float64(x: Tensor, weight: Tensor | None = None, *, eps: float = 1e-6, offset: float = 0.0) -> Tensor:
    wide = x.double()
    y = wide * torch.rsqrt(mean_square(wide) + eps)
    return (y if weight is None else y * (weight.double() + offset)).to(x.dtype)


def round_before_weight(x: Tensor, weight: Tensor | None = None, *, eps: float = 1e-6, offset: float = 0.0) -> Tensor:
    """As transformers' Llama does."""
    wide = x.float()
    y = (wide * torch.rsqrt(mean_square(wide) + eps)).to(x.dtype)
    return y if weight is None else (y * (weight.float() + offset)).to(x.dtype)


CONFORMING = {
    "float32 inside": Variant(),
    "divided by the root": Variant(inverse=lambda ms, e: 1 / torch.sqrt(ms + e)),
    "summed from the end": Variant(statistic=sum_backwards),
    "norm squared": Variant(
        statistic=lambda x: torch.linalg.vector_norm(x, dim=-1, keepdim=True).square() / x.shape[-1],
    ),
    "rounded before the weight": round_before_weight,
    "in float64": in_float64,
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_rms_norm_is_caught(bench: Any, name: str) -> None:
    assert bench.catches("rms_norm", WRONG[name]), f"no case catches: {name}"


@pytest.mark.parametrize("name", CONFORMING)
def test_conforming_rms_norm_passes(bench: Any, name: str) -> None:
    # vector_norm has no gradient at a row of zeros: another function there
    skip = ("zero-rows", "nonfinite") if name == "norm squared" else ()
    assert bench.failures("rms_norm", CONFORMING[name], skip) == []
