"""Every conforming LayerNorm passes all cases; `case prove` shows that wrong ones fail."""

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


def rounded(dtype: torch.dtype) -> Any:
    """Keeps a statistic in a low dtype."""
    return lambda x, *rest: (mean_of(x, *rest) if len(rest) == 1 else variance_of(x, *rest)).to(dtype).float()


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


@pytest.mark.parametrize("name", CONFORMING)
def test_conforming_layer_norm_passes(bench: Any, name: str) -> None:
    compute, skip = CONFORMING[name]
    assert bench.failures("layer_norm", compute, skip) == []
