"""Every wrong LayerNorm is caught by a case, every conforming one passes them all."""

from __future__ import annotations

from typing import Any

import pytest
import torch

Tensor = torch.Tensor


def mean_of(x: Tensor, over: tuple[int, ...]) -> Tensor:
    return x.mean(dim=over, keepdim=True)


def variance_of(x: Tensor, mean: Tensor, over: tuple[int, ...]) -> Tensor:
    return (x - mean).square().mean(dim=over, keepdim=True)


class Variant:
    """The right norm with one thing changed."""

    def __init__(self, **changes: Any) -> None:
        self.changes = changes

    def __call__(
        self,
        x: Tensor,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        *,
        eps: float = 1e-5,
        dims: int = 1,
    ) -> Tensor:
        change = self.changes
        over = change.get("over", lambda d: tuple(range(-d, 0)))(dims)
        wide = x.float()
        mean = change.get("mean", mean_of)(wide, over)
        variance = change.get("variance", variance_of)(wide, mean, over)
        inverse = change.get("inverse", lambda v, e: torch.rsqrt(v + e))(variance, change.get("eps", lambda e: e)(eps))
        y = (wide - mean) * inverse
        y = y if weight is None else y * change.get("weight", lambda w: w.float())(weight)
        y = y if bias is None else y + change.get("bias", lambda b: b.float())(bias)
        result: Tensor = change.get("output", lambda value, x: value.to(x.dtype))(y, x)
        return result


def one_pass(x: Tensor, mean: Tensor, over: tuple[int, ...]) -> Tensor:
    """E[x^2] - E[x]^2 in float32; the gradient by the usual formula, as kernels write it."""
    exact = variance_of(x, mean, over)
    value = (x.square().mean(dim=over, keepdim=True) - mean.square()).clamp(min=0)
    return exact + (value - exact).detach()


def unbiased(x: Tensor, mean: Tensor, over: tuple[int, ...]) -> Tensor:
    count = 1
    for axis in over:
        count *= x.shape[axis]
    return (x - mean).square().sum(dim=over, keepdim=True) / max(count - 1, 1)


def rounded(dtype: torch.dtype) -> Any:
    """Keeps a statistic in a low dtype."""
    return lambda x, *rest: (mean_of(x, *rest) if len(rest) == 1 else variance_of(x, *rest)).to(dtype).float()


def running_mean(dtype: torch.dtype) -> Any:
    """A running sum in a low dtype, eight elements at a time."""

    def mean(x: Tensor, over: tuple[int, ...]) -> Tensor:
        if len(over) > 1:
            return mean_of(x, over)
        total = torch.zeros(*x.shape[:-1], 1)
        for part in x.split(8, dim=-1):
            total = (total + part.sum(dim=-1, keepdim=True)).to(dtype).float()
        return total / x.shape[-1]

    return mean


def half_squares(x: Tensor, mean: Tensor, over: tuple[int, ...]) -> Tensor:
    return (x - mean).half().square().float().mean(dim=over, keepdim=True)


def tail_dropped(multiple: int) -> Any:
    def variance(x: Tensor, mean: Tensor, over: tuple[int, ...]) -> Tensor:
        whole = x.shape[-1] // multiple * multiple or x.shape[-1]
        return variance_of(x[..., :whole], mean, over) * whole / x.shape[-1]

    return variance


def detached(x: Tensor, *rest: Any) -> Tensor:
    return (mean_of(x, *rest) if len(rest) == 1 else variance_of(x, *rest)).detach()


def ignore_strides(x: Tensor, *parameters: Any, **options: Any) -> Tensor:
    strides = torch.empty(x.shape, device="meta").stride()
    return Variant()(x.as_strided(x.shape, strides, x.storage_offset()), *parameters, **options)


def kernel_of_the_cpu(
    x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, *, eps: float = 1e-5, dims: int = 1
) -> Tensor:
    """torch's own kernel in bfloat16 on the CPU: rstd and the parameters' gradients are kept in the low dtype."""
    parts = [part if part is None else part.to(x.dtype) for part in (weight, bias)]
    return torch.nn.functional.layer_norm(x, tuple(x.shape[-dims:]), parts[0], parts[1], eps)


def rewrite_input(x: Tensor, *parameters: Any, **options: Any) -> Tensor:
    y = Variant()(x.clone(), *parameters, **options)
    with torch.no_grad():
        x.detach().copy_(y)
    return y


WRONG = {
    "eps 1e-5 always": Variant(eps=lambda eps: 1e-5),
    "eps 1e-6 always": Variant(eps=lambda eps: 1e-6),
    "eps 1e-12 always": Variant(eps=lambda eps: 1e-12),
    "eps ignored": Variant(eps=lambda eps: 0.0),
    "eps outside the root": Variant(inverse=lambda v, e: 1 / (v.sqrt() + e)),
    "root forgotten": Variant(inverse=lambda v, e: 1 / (v + e)),
    "unbiased variance": Variant(variance=unbiased),
    "one-pass variance": Variant(variance=one_pass),
    "mean not subtracted": Variant(mean=lambda x, over: torch.zeros_like(mean_of(x, over))),
    "mean square for variance": Variant(variance=lambda x, m, over: x.square().mean(dim=over, keepdim=True)),
    "last dimension only": Variant(over=lambda dims: (-1,)),
    "one dimension too many": Variant(over=lambda dims: tuple(range(-dims - 1, 0))),
    "weight ignored": Variant(weight=lambda w: 1.0),
    "bias ignored": Variant(bias=lambda b: 0.0),
    "bias subtracted": Variant(bias=lambda b: -b.float()),
    "weight and bias rounded to bfloat16": Variant(
        weight=lambda w: w.bfloat16().float(), bias=lambda b: b.bfloat16().float()
    ),
    "mean kept in bfloat16": Variant(mean=rounded(torch.bfloat16)),
    "variance kept in bfloat16": Variant(variance=rounded(torch.bfloat16)),
    "variance kept in float16": Variant(variance=rounded(torch.float16)),
    "running mean in bfloat16": Variant(mean=running_mean(torch.bfloat16)),
    "running mean in float16": Variant(mean=running_mean(torch.float16)),
    "squares in float16": Variant(variance=half_squares),
    "variance without the tail of a tile of 64": Variant(variance=tail_dropped(64)),
    "variance without the tail of a tile of 16": Variant(variance=tail_dropped(16)),
    "strides ignored": ignore_strides,
    "result in float32": Variant(output=lambda y, x: y),
    "NaN becomes 0": Variant(output=lambda y, x: torch.nan_to_num(y, nan=0.0).to(x.dtype)),
    "gradient takes the mean for a constant": Variant(mean=detached),
    "gradient takes the variance for a constant": Variant(variance=detached),
    "no gradient for weight and bias": Variant(weight=lambda w: w.detach().float(), bias=lambda b: b.detach().float()),
    "the CPU's kernel in low precision": kernel_of_the_cpu,
    "input rewritten": rewrite_input,
}


def sum_backwards(x: Tensor, over: tuple[int, ...]) -> Tensor:
    return x.flip(over).mean(dim=over, keepdim=True)


def in_float64(
    x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, *, eps: float = 1e-5, dims: int = 1
) -> Tensor:
    parts = [part if part is None else part.double() for part in (weight, bias)]
    return torch.nn.functional.layer_norm(x.double(), tuple(x.shape[-dims:]), parts[0], parts[1], eps).to(x.dtype)


def in_steps(
    x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, *, eps: float = 1e-5, dims: int = 1
) -> Tensor:
    """Rounded to the dtype before the weight and before the bias."""
    over, wide = tuple(range(-dims, 0)), x.float()
    mean = mean_of(wide, over)
    y = ((wide - mean) * torch.rsqrt(variance_of(wide, mean, over) + eps)).to(x.dtype)
    y = y if weight is None else (y * weight).to(x.dtype)
    return y if bias is None else (y + bias).to(x.dtype)


FAR = ("mean-300",)  # where E[x^2] - E[x]^2 is wrong by construction

CONFORMING = {
    "float32 inside": (Variant(), ()),
    "summed from the end": (Variant(mean=sum_backwards), ()),
    "divided by the root": (Variant(inverse=lambda v, e: 1 / torch.sqrt(v + e)), ()),
    "one-pass variance on benign data": (Variant(variance=one_pass), FAR),
    "rounded at every step": (in_steps, ()),
    "in float64": (in_float64, ()),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_layer_norm_is_caught(bench: Any, name: str) -> None:
    assert bench.catches("layer_norm", WRONG[name]), f"no case catches: {name}"


@pytest.mark.parametrize("name", CONFORMING)
def test_conforming_layer_norm_passes(bench: Any, name: str) -> None:
    compute, skip = CONFORMING[name]
    assert bench.failures("layer_norm", compute, skip) == []
