"""Float64 reference of writing new keys into a paged cache."""

from __future__ import annotations

import torch


def kv_cache(cache: torch.Tensor, new: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
    """The cache with token t of ``new`` in slot ``slots[t]``; a negative slot is skipped. Returns the shape of
    ``cache``.

    ``cache`` (blocks, size, N, D), ``new`` (T, N, D), ``slots`` (T,) whole numbers: block * size + place, each at most
    once. Source: vLLM's reshape_and_cache.
    """
    flat = cache.double().flatten(0, 1)
    kept = slots >= 0
    return flat.index_copy(0, slots[kept], new.double()[kept]).reshape(cache.shape)
