"""Float64 reference of a product of two int8 matrices, scaled back."""

from __future__ import annotations

import torch


def int8_matmul(
    a: torch.Tensor,
    b: torch.Tensor,
    scale: torch.Tensor,
    token_scale: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    int_bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """((a b + int_bias) * scale) * token_scale + bias. Returns (M, N) in the dtype of ``scale``.

    ``a`` (M, K), ``b`` (K, N) int8, added up in int32; ``scale`` (1,) or (N,), ``token_scale`` (M,), ``bias`` (N,)
    floating, ``int_bias`` (N,) int32. Source: npu_quant_matmul's documentation; Dettmers and others, arXiv:2208.07339,
    eq. 5.
    """
    total = a.double() @ b.double()
    total = total if int_bias is None else total + int_bias.double()
    y = total * scale.double()
    y = y if token_scale is None else y * token_scale.double()[:, None]
    return y if bias is None else y + bias.double()
