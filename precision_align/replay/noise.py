"""Rounding made visible: run a float64 function with a small random relative error after every operation that rounds.

Perturbing the inputs alone is blind to cancellation inside: where a query sees one key only, the softmax gradient is
p (dp - sum(p dp)) = 0 for any inputs, and yet every build rounds both terms. Fused operators show it where the results
of their forward are shaken, which their backward reads: output and log-sum-exp of attention, statistics of norms.
"""

from __future__ import annotations

from typing import Any, Callable, TypeVar

import torch
from torch.utils._python_dispatch import TorchDispatchMode

T = TypeVar("T")

# What rounds when floating-point numbers go through it. Moves, selections, sign changes, comparisons and views do not;
# an operation that is missing here only makes the bound tighter.
ROUNDING = frozenset(
    [
        "add",
        "sub",
        "rsub",
        "mul",
        "div",
        "addmm",
        "mm",
        "bmm",
        "baddbmm",
        "addcmul",
        "addcdiv",
        "dot",
        "convolution",
        "convolution_backward",
        "sum",
        "mean",
        "var",
        "cumsum",
        "prod",
        "exp",
        "exp2",
        "expm1",
        "log",
        "log2",
        "log1p",
        "sqrt",
        "rsqrt",
        "reciprocal",
        "pow",
        "square",
        "sin",
        "cos",
        "tanh",
        "sigmoid",
        "erf",
        "erfc",
        "tanh_backward",
        "sigmoid_backward",
        "silu",
        "silu_backward",
        "gelu",
        "gelu_backward",
        "_softmax",
        "_safe_softmax",
        "_softmax_backward_data",
        "_log_softmax",
        "_log_softmax_backward_data",
        "logsumexp",
        "native_layer_norm",
        "native_layer_norm_backward",
        "native_batch_norm",
        "native_batch_norm_backward",
        "native_group_norm",
        "native_group_norm_backward",
        "_scaled_dot_product_flash_attention_for_cpu",
        "_scaled_dot_product_flash_attention_for_cpu_backward",
        "linear",
        "index_add",
        "scatter_add",
    ]
)


class RoundingNoise(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While active, the floating result of every rounding operation is multiplied by 1 + step * N(0, 1)."""

    def __init__(self, generator: torch.Generator, step: float) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._generator, self._step = generator, step

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if name.rstrip("_") not in ROUNDING:
            return result
        return _shake(result, self._generator, self._step, in_place=name.endswith("_"))


def run_noisily(call: Callable[[], T], generator: torch.Generator, step: float) -> T:
    """``call()`` under :class:`RoundingNoise`, backward too."""
    with RoundingNoise(generator, step):
        return call()


def _shake(result: Any, generator: torch.Generator, step: float, in_place: bool) -> Any:
    if isinstance(result, (tuple, list)):
        return type(result)(_shake(item, generator, step, in_place) for item in result)
    if not isinstance(result, torch.Tensor) or not result.is_floating_point() or result.layout != torch.strided:
        return result
    factor = 1 + step * torch.randn(result.shape, generator=generator, dtype=torch.float64)
    return result.mul_(factor) if in_place else result * factor
