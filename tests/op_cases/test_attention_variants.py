"""Every conforming attention passes all cases; `case prove` shows that wrong ones fail."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

Tensor = torch.Tensor


def see(queries: int, keys: int, causal: str) -> Tensor:
    everything = torch.ones(queries, keys, dtype=torch.bool)
    if causal == "none":
        return everything
    return everything.tril(keys - queries if causal == "bottom-right" else 0)


def soften(scores: Tensor, hidden: Tensor) -> Tensor:
    """Softmax; a query that sees nothing gets zeros."""
    empty = hidden.all(dim=-1, keepdim=True)
    kept = scores.masked_fill(hidden, -math.inf).masked_fill(empty, 0.0)
    return torch.softmax(kept, dim=-1).masked_fill(hidden, 0.0)


def repeat(key: Tensor, groups: int) -> Tensor:
    return key.repeat_interleave(groups, dim=1)


class Variant:
    """The right attention with one thing changed."""

    def __init__(self, **changes: Any) -> None:
        self.changes = changes

    def __call__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        mask: Tensor | None = None,
        causal: str = "none",
        scale: float | None = None,
    ) -> Tensor:
        change = self.changes
        dtype, groups = query.dtype, query.shape[1] // key.shape[1]
        repeat_heads = change.get("repeat", repeat)
        q, k, v = query.float(), repeat_heads(key.float(), groups), repeat_heads(value.float(), groups)
        q, k, v = change.get("inputs", lambda *parts: parts)(q, k, v)
        factor = change.get("scale", lambda s, size: size**-0.5 if s is None else s)(scale, query.shape[-1])
        scores = (q @ k.transpose(-1, -2)) * factor
        hidden = ~change.get("see", see)(scores.shape[-2], scores.shape[-1], causal)
        mask = change.get("mask", lambda m: m)(mask)
        if mask is not None and mask.dtype == torch.bool:
            hidden = hidden | ~mask
        elif mask is not None:
            scores = scores + change.get("bias", lambda bias, factor: bias)(mask.float(), factor)
            hidden = hidden | (mask == -math.inf)
        hidden = hidden.expand(scores.shape)
        weights = change.get("soften", soften)(scores, hidden)
        y = change.get("product", torch.matmul)(weights, v)
        result: Tensor = change.get("output", lambda y, q, dtype: y.to(dtype))(y, query, dtype)
        return result


def flip(mask: Tensor | None) -> Tensor | None:
    return ~mask if mask is not None and mask.dtype == torch.bool else mask


def merge_blocks(size: int) -> Any:
    """FlashAttention's online softmax over blocks of keys, written as weights."""

    def compute(scores: Tensor, hidden: Tensor) -> Tensor:
        kept = scores.masked_fill(hidden, -math.inf)
        maximum = torch.full_like(kept[..., :1], -1e30)
        total, parts = torch.zeros_like(maximum), []
        for block in kept.split(size, dim=-1):
            higher = torch.maximum(maximum, block.detach().amax(dim=-1, keepdim=True))
            rescale = torch.exp(maximum - higher)
            powers = torch.exp(block - higher)
            parts = [*(part * rescale for part in parts), powers]
            total, maximum = total * rescale + powers.sum(dim=-1, keepdim=True), higher
        weights = torch.cat(parts, dim=-1).masked_fill(hidden, 0.0)
        return weights / total.clamp(min=1e-30)

    return compute


def soften_by_exp2(scores: Tensor, hidden: Tensor) -> Tensor:
    empty = hidden.all(dim=-1, keepdim=True)
    kept = scores.masked_fill(hidden, -math.inf).masked_fill(empty, 0.0)
    powers = torch.exp2((kept - kept.detach().amax(dim=-1, keepdim=True)) * math.log2(math.e))
    return (powers * (1 / powers.flip(-1).sum(dim=-1, keepdim=True))).masked_fill(hidden, 0.0)


def split_sums(weights: Tensor, value: Tensor) -> Tensor:
    """Keys in another order and in four partial sums."""
    order = torch.randperm(value.shape[-2], generator=torch.Generator().manual_seed(7))
    parts = [weights[..., index] @ value[..., index, :] for index in order.chunk(4)]
    return torch.stack(parts).sum(dim=0)


def in_float64(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    def widen(*parts: Tensor) -> tuple[Tensor, ...]:
        return tuple(part.double() for part in parts)

    return Variant(inputs=widen)(query, key, value, **options)


CONFORMING = {
    "float32 inside": Variant(),
    "online softmax over blocks of 16": Variant(soften=merge_blocks(16)),
    "online softmax over blocks of 512": Variant(soften=merge_blocks(512)),
    "exp2 and a reciprocal": Variant(soften=soften_by_exp2),
    "split sums": Variant(product=split_sums),
    "in float64": in_float64,
}


@pytest.mark.parametrize("name", CONFORMING)
def test_conforming_attention_passes(bench: Any, name: str) -> None:
    assert bench.failures("attention", CONFORMING[name]) == []
