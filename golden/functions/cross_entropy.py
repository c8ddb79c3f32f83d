"""Float64 reference of cross entropy with weights, ignored targets, label smoothing and z-loss."""

from __future__ import annotations

import torch


def cross_entropy(
    x: torch.Tensor,
    target: torch.Tensor,
    *,
    weight: torch.Tensor | None = None,
    ignore_index: int = -100,
    smoothing: float = 0.0,
    z_scale: float = 0.0,
    reduction: str = "mean",
) -> torch.Tensor:
    """-log softmax(x)[target], smoothed over all classes. Returns (N,) for "none", else a number.

    ``x`` (N, C), ``target`` (N,) whole numbers; rows with ``ignore_index`` count nothing. Smoothing e: (1 - e) of the
    target's loss plus e / C of the sum over all classes, each times its ``weight`` (C,). ``z_scale`` adds
    z_scale * logsumexp^2 (unweighted). "mean" divides by the targets' weights. Source: Szegedy and others,
    arXiv:1512.00567, section 7; PyTorch's CrossEntropyLoss; Zoph and others, arXiv:2202.08906, eq. 5 (z-loss).
    """
    x = x.double()
    kept = target != ignore_index
    index = torch.where(kept, target, torch.zeros_like(target))
    weights = torch.ones(x.shape[1], dtype=torch.float64, device=x.device) if weight is None else weight.double()
    top = x.detach().amax(dim=-1, keepdim=True)
    lse = torch.log(torch.exp(x - top).sum(dim=-1, keepdim=True)) + top
    each = (lse - x) * weights
    loss = (1 - smoothing) * each.gather(1, index[:, None]).squeeze(1) + smoothing / x.shape[1] * each.sum(dim=-1)
    loss = (loss + z_scale * lse.squeeze(1).square()).masked_fill(~kept, 0.0)
    if reduction == "none":
        return loss
    return loss.sum() / weights[index].masked_fill(~kept, 0.0).sum() if reduction == "mean" else loss.sum()
