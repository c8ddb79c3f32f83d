"""Float64 reference of sorting tokens by expert."""

from __future__ import annotations

import torch


def moe_permute(
    tokens: torch.Tensor, experts: torch.Tensor, *, kept: int | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens in the order of their experts, and where each copy went. Returns (M, H) and (T * k,).

    ``tokens`` (T, H), ``experts`` (T, k) whole numbers. Copy t * k + j stands at place ``places[t * k + j]``; copies of
    one expert stay in their order (stable). ``kept``: only the first so many rows are given (dropped tokens).
    Source: npu_moe_token_permute's documentation; Megatron-LM core/transformer/moe/moe_utils.py, permute.
    """
    flat = experts.flatten().tolist()
    order = sorted(range(len(flat)), key=lambda copy: (flat[copy], copy))
    source = torch.tensor(order, dtype=torch.int64, device=tokens.device)
    places = torch.empty_like(source)
    places[source] = torch.arange(len(flat), device=tokens.device)
    rows = torch.div(source, experts.shape[1], rounding_mode="floor")
    return tokens.double()[rows[:kept]], places
