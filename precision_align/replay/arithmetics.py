"""Arithmetic modes of matrix units, tried on a suspect: a mode is a setting to declare, not an operator to fix.

HF32 keeps 11 explicit mantissa bits of float32 inputs (hiascend, SetHF32: round to nearest even), TF32 keeps 10
(NVIDIA A100 white paper); first-generation Ascend 910 has no float32 cube unit and computes in float16.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Optional

import torch
from torch.utils._python_dispatch import TorchDispatchMode

# Positions of the multiplied tensors in each product's arguments.
PRODUCTS = {
    "aten::mm": (0, 1),
    "aten::bmm": (0, 1),
    "aten::addmm": (1, 2),
    "aten::baddbmm": (1, 2),
    "aten::mv": (0, 1),
    "aten::addmv": (1, 2),
    "aten::dot": (0, 1),
    "aten::convolution": (0, 1),
    "aten::convolution_backward": (0, 1, 2),
    "aten::_scaled_dot_product_flash_attention_for_cpu": (0, 1, 2),
}


@dataclass(frozen=True)
class Arithmetic:
    """One way to multiply float32: how many explicit mantissa bits of the inputs survive, or a lower dtype."""

    name: str
    text: str
    bits: int = 23
    dtype: Optional[torch.dtype] = None

    def degrade(self, tensor: torch.Tensor) -> torch.Tensor:
        """A float32 tensor as this arithmetic's multiplier sees it."""
        if tensor.dtype != torch.float32:
            return tensor
        if self.dtype is not None:
            return tensor.to(self.dtype).to(torch.float32)
        return round_mantissa(tensor, self.bits)


ARITHMETICS = (
    Arithmetic("hf32", "HF32: inputs of products rounded to 11 mantissa bits (torch.npu.matmul.allow_hf32)", 11),
    Arithmetic(
        "tf32", "TF32: inputs of products rounded to 10 mantissa bits (torch.backends.cuda.matmul.allow_tf32)", 10
    ),
    Arithmetic(
        "fp16", "products of float32 computed in float16 (ACL_PRECISION_MODE allow_fp32_to_fp16)", dtype=torch.float16
    ),
    Arithmetic("bf16", "products of float32 computed in bfloat16", dtype=torch.bfloat16),
)


def round_mantissa(tensor: torch.Tensor, bits: int) -> torch.Tensor:
    """Round float32 to ``bits`` explicit mantissa bits, to nearest even; NaN and Inf stay."""
    words = tensor.contiguous().view(torch.int32)
    drop = 23 - bits
    rounded = words + ((1 << (drop - 1)) - 1) + ((words >> drop) & 1)
    kept = (rounded & ~((1 << drop) - 1)).view(torch.float32)
    return torch.where(torch.isfinite(tensor), kept, tensor)


class ArithmeticMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While active, every product sees degraded inputs; ``count`` is how many did."""

    def __init__(self, arithmetic: Arithmetic) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._arithmetic = arithmetic
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        positions = PRODUCTS.get(func._schema.name)
        if positions is None:
            return func(*args, **(kwargs or {}))
        self.count += 1
        changed = [
            self._arithmetic.degrade(value) if index in positions and isinstance(value, torch.Tensor) else value
            for index, value in enumerate(args)
        ]
        return func(*changed, **(kwargs or {}))
