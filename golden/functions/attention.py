"""Float64 reference of scaled dot-product attention, with the choices in which implementations differ as arguments."""

from __future__ import annotations

import math

import torch

CAUSAL = ("none", "top-left", "bottom-right")


def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    mask: torch.Tensor | None = None,
    causal: str = "none",
    scale: float | None = None,
) -> torch.Tensor:
    """softmax(scale * q k^T + mask) v in float64. Returns (B, Nq, Sq, Dv).

    ``query`` (B, Nq, Sq, D), ``key`` (B, Nkv, Skv, D), ``value`` (B, Nkv, Skv, Dv), Nq a multiple of Nkv (each key head
    serves Nq / Nkv consecutive query heads). ``mask`` broadcasts to (B, Nq, Sq, Skv): boolean, True = takes part, or
    floating, added to the scaled scores. ``causal``: "top-left": query i sees key j where j <= i (PyTorch);
    "bottom-right": where j <= i + Skv - Sq (flash_attn since 2.1). ``scale``: None is 1 / sqrt(D).
    A query that sees no key gives zeros and no gradient (flash_attn; PyTorch since 2.5).
    """
    query, key, value = query.double(), key.double(), value.double()
    groups = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(groups, dim=1), value.repeat_interleave(groups, dim=1)
    factor = 1.0 / math.sqrt(query.shape[-1]) if scale is None else scale
    scores = factor * (query @ key.transpose(-1, -2))
    visible = find_visible(scores.shape[-2], scores.shape[-1], causal)
    if mask is not None and mask.dtype != torch.bool:
        scores = scores + mask.double()
        visible = visible & (mask.double() != -math.inf)
    elif mask is not None:
        visible = visible & mask
    visible = visible.expand(scores.shape)
    seen = visible.any(dim=-1, keepdim=True)
    scores = scores.masked_fill(seen & ~visible, -math.inf).masked_fill(~seen, 0.0)
    return soften(scores).masked_fill(~visible, 0.0) @ value


def soften(scores: torch.Tensor) -> torch.Tensor:
    """Softmax over the last dimension in elementary steps, so that its rounding can be modelled, backward too."""
    if scores.shape[-1] == 0:
        return scores
    powers = torch.exp(scores - scores.detach().amax(dim=-1, keepdim=True))
    return powers / powers.sum(dim=-1, keepdim=True)


def find_visible(queries: int, keys: int, causal: str) -> torch.Tensor:
    """(Sq, Skv) boolean: True where the query may see the key. Raises ValueError for an unknown ``causal``."""
    if causal not in CAUSAL:
        raise ValueError(f"causal is {causal!r}, must be one of {', '.join(CAUSAL)}")
    if causal == "none":
        return torch.ones(queries, keys, dtype=torch.bool)
    shift = keys - queries if causal == "bottom-right" else 0
    return torch.arange(keys)[None, :] <= torch.arange(queries)[:, None] + shift
