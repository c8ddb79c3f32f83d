"""Every conforming RMSNorm passes all cases; `case prove` shows that wrong ones fail."""

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


@pytest.mark.parametrize("name", CONFORMING)
def test_conforming_rms_norm_passes(bench: Any, name: str) -> None:
    # vector_norm has no gradient at a row of zeros: another function there
    skip = ("zero-rows", "nonfinite") if name == "norm squared" else ()
    assert bench.failures("rms_norm", CONFORMING[name], skip) == []
