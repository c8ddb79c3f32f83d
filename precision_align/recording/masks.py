"""Dropout with a mask that is given, in the order of operations of the kernel that drew it.

Formulas: ``_dropout_impl`` of ATen/native/Dropout.cpp (kernel "noise": the mask is divided by 1 - p in the tensor's own
dtype, then multiplied) and ``fused_dropout_kernel`` of ATen/native/cuda/Dropout.cu ("fused": both factors in float32,
one rounding). Attention: ``_scaled_dot_product_attention_math`` of ATen/native/transformers/attention.cpp.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Optional

import numpy as np
import torch

NOISE, FUSED = "noise", "fused"
# Self-normalizing networks (Klambauer et al. 2017): scale * alpha of SELU, as ATen has it.
_ALPHA = 1.7580993408473766


@dataclass(frozen=True)
class Mask:
    """``keep``: bool, of the tensor's shape, or [N, C, 1, ...] of the feature kinds; ``p``: share that is dropped."""

    keep: torch.Tensor
    p: float
    kernel: str = NOISE


def apply_mask(x: torch.Tensor, mask: Mask, *, alpha: bool = False, inplace: bool = False) -> torch.Tensor:
    """The output of dropout (``alpha``: of alpha dropout) for this mask. Raises ValueError where it does not fit."""
    keep = mask.keep
    if keep.dim() == x.dim() + 1 and keep.shape[0] == 1:  # dropout1d and dropout3d add the batch themselves
        keep = keep.squeeze(0)
    if keep.dim() != x.dim() or any(size not in (1, full) for size, full in zip(keep.shape, x.shape)):
        raise ValueError(f"the mask has shape {tuple(mask.keep.shape)}, the tensor {tuple(x.shape)}")
    keep = keep.to(x.device)
    if mask.kernel == FUSED:
        result: torch.Tensor = _FusedDropout.apply(x, keep, mask.p)  # type: ignore[no-untyped-call]
        return x.copy_(result) if inplace else result
    noise = keep.to(x.dtype)
    if not alpha:
        noise.div_(1 - mask.p)
        return x.mul_(noise) if inplace else x * noise
    factor = 1 / math.sqrt((_ALPHA * _ALPHA * mask.p + 1) * (1 - mask.p))
    offset = noise.add(-1).mul_(_ALPHA * factor).add_(_ALPHA * factor * mask.p)
    noise.mul_(factor)
    return x.mul_(noise).add_(offset) if inplace else (x * noise).add_(offset)


class _FusedDropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, keep: torch.Tensor, p: float) -> torch.Tensor:
        ctx.save_for_backward(keep)
        ctx.scale = 1 / (1 - p)
        # the kernel holds the kept share in the accumulation type before it takes the reciprocal
        kept = np.float64(1 - p) if x.dtype == torch.float64 else np.float32(1 - p)
        return _scale(x, keep, 1 / float(kept))

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return _scale(gradient, ctx.saved_tensors[0], ctx.scale), None, None


def _scale(x: torch.Tensor, keep: torch.Tensor, scale: float) -> torch.Tensor:
    wide = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
    return (wide * keep * scale).to(x.dtype)


def attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: Mask,
    *,
    attn_mask: Optional[torch.Tensor] = None,
    is_causal: bool = False,
    scale: Optional[float] = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """Attention [..., L, E] x [..., S, E] x [..., S, Ev] -> [..., L, Ev], composed, with this mask [..., L, S]."""
    if enable_gqa:
        key = key.repeat_interleave(query.shape[-3] // key.shape[-3], -3)
        value = value.repeat_interleave(query.shape[-3] // value.shape[-3], -3)
    root = math.sqrt(1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    scores = (query * root) @ (key * root).transpose(-2, -1)
    if is_causal:
        attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        scores = scores.masked_fill(attn_mask.logical_not(), -math.inf)
    elif attn_mask is not None:
        scores = scores + attn_mask
    return apply_mask(scores.softmax(-1), mask) @ value
