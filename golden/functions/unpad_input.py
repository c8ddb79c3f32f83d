"""Float64 reference of packing a padded batch, as flash_attn.bert_padding does."""

from __future__ import annotations

import torch


def unpad_input(x: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The tokens that are kept, one after the other. Returns (T, C), their places (T,), starts (B + 1,).

    ``x`` (B, S, C); ``mask`` (B, S) boolean, True = kept. A place is b * S + s; ``starts[b]`` is the number of tokens
    before sequence b, the last entry all. Source: flash_attn.bert_padding.unpad_input's docstring.
    """
    places = [b * mask.shape[1] + s for b, row in enumerate(mask.tolist()) for s, kept in enumerate(row) if kept]
    starts = [sum(sum(row) for row in mask.tolist()[:b]) for b in range(mask.shape[0] + 1)]
    index = torch.tensor(places, dtype=torch.int64, device=x.device)
    return x.double().flatten(0, 1)[index], index, torch.tensor(starts, dtype=torch.int64, device=x.device)
