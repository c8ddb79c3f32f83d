"""Float64 reference of a projection to the vocabulary fused with cross entropy."""

from __future__ import annotations

import torch


def fused_linear_cross_entropy(
    x: torch.Tensor,
    weight: torch.Tensor,
    target: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
) -> torch.Tensor:
    """Cross entropy of x weight^T + bias. Returns a number ("mean" over rows that count, "sum").

    ``x`` (N, H), ``weight`` (V, H), ``bias`` (V,), ``target`` (N,) whole numbers. Source: Liger-Kernel (Hsu and others,
    arXiv:2410.10989, section 3.2).
    """
    kept = target != ignore_index
    logits = x.double()[kept] @ weight.double().T
    logits = logits if bias is None else logits + bias.double()
    top = logits.detach().amax(dim=-1, keepdim=True)
    lse = torch.log(torch.exp(logits - top).sum(dim=-1)) + top.squeeze(-1)
    loss = (lse - logits.gather(1, target[kept][:, None]).squeeze(1)).sum()
    return loss / kept.sum() if reduction == "mean" else loss
