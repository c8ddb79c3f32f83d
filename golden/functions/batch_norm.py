"""Float64 reference of batch normalisation, in training and in evaluation."""

from __future__ import annotations

import torch


def batch_norm(
    x: torch.Tensor,
    running_mean: torch.Tensor,
    running_var: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    *,
    training: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Normalise (N, C, ...) by channel. Returns (y, new running mean, new running variance), y of the shape of ``x``.

    Training: statistics of the batch, the variance biased in y and unbiased in the running one, which moves by
    ``momentum`` towards the batch. Evaluation: the running statistics, unchanged. Source: Ioffe and Szegedy,
    arXiv:1502.03167, algorithms 1 and 2; PyTorch's BatchNorm2d for momentum.
    """
    x, mean, variance = x.double(), running_mean.double(), running_var.double()
    channels = (1, -1) + (1,) * (x.dim() - 2)
    new_mean, new_variance = mean, variance
    if training:
        over = [dim for dim in range(x.dim()) if dim != 1]
        count = x.numel() // x.shape[1]
        mean = x.mean(dim=over)
        variance = (x - mean.reshape(channels)).square().mean(dim=over)
        new_mean = (1 - momentum) * new_mean + momentum * mean.detach()
        new_variance = (1 - momentum) * new_variance + momentum * variance.detach() * count / (count - 1)
    y = (x - mean.reshape(channels)) / torch.sqrt(variance + eps).reshape(channels)
    y = y * weight.double().reshape(channels) + bias.double().reshape(channels)
    return y, new_mean, new_variance
