"""Float64 reference of decoding attention over a paged key-value cache."""

from __future__ import annotations

import math

import torch


def paged_attention(
    q: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    tables: torch.Tensor,
    lengths: torch.Tensor,
    *,
    scale: float | None = None,
) -> torch.Tensor:
    """One query a sequence against its first ``lengths`` keys. Returns (B, N, D).

    ``q`` (B, N, D); caches (blocks, size, Nkv, D); ``tables`` (B, M): the blocks of each sequence in order, entries
    beyond its length are anything (also -1); ``lengths`` (B,), 0 gives zeros. What lies in the cache beyond a
    sequence's length, NaN too, has no influence. Source: Kwon and others, arXiv:2309.06180, section 4.1; vLLM.
    """
    size, groups = key_cache.shape[1], q.shape[1] // key_cache.shape[2]
    outputs = []
    for query, table, length in zip(q.double(), tables.tolist(), lengths.tolist()):
        used = table[: -(-length // size)]
        keys = key_cache[used].double().flatten(0, 1)[:length].repeat_interleave(groups, dim=1)
        values = value_cache[used].double().flatten(0, 1)[:length].repeat_interleave(groups, dim=1)
        scores = torch.einsum("hd,khd->hk", query, keys) * (1.0 / math.sqrt(q.shape[-1]) if scale is None else scale)
        weights = torch.softmax(scores, dim=-1)
        outputs.append(torch.einsum("hk,khd->hd", weights, values))
    return torch.stack(outputs) if outputs else torch.zeros(q.shape, dtype=torch.float64)
