"""Float64 reference of Megatron's cross entropy over logits that are split by vocabulary."""

from __future__ import annotations

import torch


def vocab_parallel_cross_entropy(shards: torch.Tensor, target: torch.Tensor, *, smoothing: float = 0.0) -> torch.Tensor:
    """Cross entropy of the shards joined along the vocabulary, one loss a token. Returns (T,).

    ``shards`` (R, T, V / R): rank r holds classes r V / R and up; ``target`` (T,) whole numbers below V.
    ``smoothing`` a: (1 - a K / (K - 1)) of the loss plus a K / (K - 1) of minus the mean log probability, K = V.
    Source: Megatron-LM core/tensor_parallel/cross_entropy.py (this smoothing gives the target 1 - a, each other a /
    (K - 1)).
    """
    x = shards.double().transpose(0, 1).flatten(1)
    top = x.detach().amax(dim=-1, keepdim=True)
    logs = x - top - torch.log(torch.exp(x - top).sum(dim=-1, keepdim=True))
    classes = x.shape[1]
    share = smoothing * classes / (classes - 1)
    return -(1 - share) * logs.gather(1, target[:, None]).squeeze(1) - share * logs.mean(dim=-1)
