"""Float64 reference of flash_attn_func: windows, softcap, ALiBi, grouped heads, in its own layout."""

from __future__ import annotations

import math

import torch


def flash_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    slopes: torch.Tensor | None = None,
    scale: float | None = None,
    causal: bool = False,
    window: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """softmax(cap(scale q k^T) - slope |distance|) v. Returns (B, Sq, N, D) and the logsumexp (B, N, Sq),
    through which no gradient flows.

    ``q`` (B, Sq, N, D), ``k``, ``v`` (B, Skv, Nkv, D), N a multiple of Nkv. Query i stands at key p = i + Skv - Sq (the
    sequences end together). ``window`` (left, right): keys p - left .. p + right are seen, -1 is no limit; ``causal``:
    no key after p. ``softcap`` c > 0: c tanh(score / c). ``slopes`` (N,): ALiBi, minus slope times |p - j|.
    A query that sees no key gives zeros, and minus infinity. Source: flash_attn 2.7's docstring of flash_attn_func;
    Dao, arXiv:2307.08691; Press and others, arXiv:2108.12409 (ALiBi).
    """
    q, k, v = (part.double().transpose(1, 2) for part in (q, k, v))
    groups = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1)
    scores = (1.0 / math.sqrt(q.shape[-1]) if scale is None else scale) * (q @ k.transpose(-1, -2))
    if softcap > 0:
        scores = softcap * torch.tanh(scores / softcap)
    place = torch.arange(q.shape[2], device=q.device)[:, None] + k.shape[2] - q.shape[2]
    distance = torch.arange(k.shape[2], device=q.device)[None, :] - place
    if slopes is not None:
        scores = scores - slopes.double()[:, None, None] * distance.abs()
    left, right = window
    right = 0 if causal else right
    visible = torch.ones_like(distance, dtype=torch.bool)
    if left >= 0:
        visible = visible & (distance >= -left)
    if right >= 0:
        visible = visible & (distance <= right)
    empty = ~visible.any(dim=-1, keepdim=True)
    scores = scores.masked_fill(~visible, -math.inf).masked_fill(empty, 0.0)
    top = scores.detach().amax(dim=-1, keepdim=True)
    powers = torch.exp(scores - top).masked_fill(~visible, 0.0)
    total = powers.sum(dim=-1, keepdim=True).masked_fill(empty, 1.0)
    lse = (torch.log(total) + top).masked_fill(empty, -math.inf).squeeze(-1)
    return ((powers / total) @ v).transpose(1, 2), lse.detach()
