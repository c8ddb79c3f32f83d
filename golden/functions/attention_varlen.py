"""Float64 reference of attention over packed sequences of different lengths."""

from __future__ import annotations

import math

import torch


def attention_varlen(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    starts_q: torch.Tensor,
    starts_k: torch.Tensor,
    *,
    scale: float | None = None,
    causal: bool = False,
) -> torch.Tensor:
    """Attention within each sequence of a pack. Returns (Tq, N, D).

    ``q`` (Tq, N, D), ``k``, ``v`` (Tk, Nkv, D): all sequences one after the other; ``starts_q``, ``starts_k`` (B + 1,)
    whole numbers: where each begins, and the total. ``causal`` is bottom-right within a sequence. Tokens that see no
    key give zeros. Source: flash_attn_varlen_func's docstring.
    """
    q, k, v = q.double(), k.double(), v.double()
    if k.shape[0] == 0:
        return torch.zeros_like(q)
    sequence_q = torch.bucketize(torch.arange(q.shape[0], device=q.device), starts_q[1:], right=True)
    sequence_k = torch.bucketize(torch.arange(k.shape[0], device=q.device), starts_k[1:], right=True)
    visible = sequence_q[:, None] == sequence_k[None, :]
    if causal:  # distance of both to the end of their sequence
        left_q = starts_q[1:][sequence_q] - torch.arange(q.shape[0], device=q.device)
        left_k = starts_k[1:][sequence_k] - torch.arange(k.shape[0], device=q.device)
        visible = visible & (left_k[None, :] >= left_q[:, None])
    groups = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1)
    scores = torch.einsum("qhd,khd->hqk", q, k) * (1.0 / math.sqrt(q.shape[-1]) if scale is None else scale)
    empty = ~visible.any(dim=-1, keepdim=True)
    scores = scores.masked_fill(~visible, -math.inf).masked_fill(empty, 0.0)
    powers = torch.exp(scores - scores.detach().amax(dim=-1, keepdim=True)).masked_fill(~visible, 0.0)
    weights = powers / powers.sum(dim=-1, keepdim=True).masked_fill(empty, 1.0)
    return torch.einsum("hqk,khd->qhd", weights, v)
