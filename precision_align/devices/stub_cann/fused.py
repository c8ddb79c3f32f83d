"""torch_npu's fused operators on CPU tensors, for the stub CANN: its forward and its backward operators by name.

Forward arithmetic is that of the look-alikes (``lookalike_operators.py``), in float32 inside. A backward operator
differentiates the same arithmetic, which is what torch_npu's autograd calls with the tensors that its forward saved.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from precision_align.devices import lookalike_operators as operators

Kernel = Callable[..., Any]

# The dispatcher's keys of a thread in which nothing is switched off: (included, excluded), as at this import.
_UNTOUCHED = (torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set())


def _pull_back(
    compute: Callable[..., torch.Tensor], inputs: Sequence[torch.Tensor], gradient: torch.Tensor
) -> list[torch.Tensor]:
    """Gradients of ``compute(*inputs)`` for each input, inside a kernel, where torch has autograd switched off."""
    with torch.enable_grad(), torch._C._ForceDispatchKeyGuard(*_UNTOUCHED):
        leaves = [one.detach().requires_grad_() for one in inputs]
        found = torch.autograd.grad(compute(*leaves), leaves, gradient)
    return [one.detach() for one in found]


def _rms_norm_backward(
    gradient: torch.Tensor, values: torch.Tensor, gamma: torch.Tensor, rstd: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """With rstd as saved: dx = rstd (g - x rstd^2 mean(g x)), g = dy gamma; dgamma = sum(dy x rstd), in float32."""
    dims = list(range(values.dim() - gamma.dim(), values.dim()))
    inner, scaled = values.float(), gradient.float() * gamma.float()
    slope = rstd * (scaled - inner * rstd.square() * (scaled * inner).mean(dims, keepdim=True))
    summed = (gradient.float() * inner * rstd).sum_to_size(gamma.shape)
    return slope.to(values.dtype), summed


def _swiglu_backward(gradient: torch.Tensor, values: torch.Tensor, dim: int = -1) -> torch.Tensor:
    return _pull_back(lambda one: operators.compute_swiglu(one, dim)[0], [values], gradient)[0]


def _gelu_backward(gradient: torch.Tensor, values: torch.Tensor, *, approximate: str = "none") -> torch.Tensor:
    return _pull_back(lambda one: operators.compute_gelu(one, approximate=approximate)[0], [values], gradient)[0]


def _rotary_mul_backward(
    gradient: torch.Tensor, values: torch.Tensor, r1: torch.Tensor, r2: torch.Tensor, rotary_mode: str = "half"
) -> tuple[torch.Tensor, ...]:
    def rotate(one: torch.Tensor, two: torch.Tensor, three: torch.Tensor) -> torch.Tensor:
        return operators.compute_rotary_mul(one, two, three, rotary_mode)[0]

    return tuple(_pull_back(rotate, [values, r1, r2], gradient))


def _attend(*args: Any, **kwargs: Any) -> tuple[Any, ...]:
    """npu_fusion_attention_v3: seed and offset are tensors, and there is no number of dropped elements."""
    attention, maxima, sums, inner, _, _, _ = operators.compute_fusion_attention(*args, **kwargs)
    seed, offset = torch.zeros(1, dtype=torch.int64), torch.zeros(1, dtype=torch.int64)
    return attention, maxima, sums, inner, seed, offset


# What the backward operator is told and the arithmetic does not need, being computed again.
_SAVED = ("softmax_max", "softmax_sum", "softmax_in", "attention_in", "seed", "offset", "numels")


def _attention_backward(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    gradient: torch.Tensor,
    head_num: int,
    input_layout: str,
    *,
    scale_value: float = 1.0,
    **options: Any,
) -> tuple[torch.Tensor, ...]:
    """Gradients of query, key and value; empty ones for pse and sink, which the arithmetic refuses or leaves fixed."""
    kept = {name: value for name, value in options.items() if name not in _SAVED}

    def attend(one: torch.Tensor, two: torch.Tensor, three: torch.Tensor) -> torch.Tensor:
        attended = operators.compute_fusion_attention(
            one, two, three, head_num, input_layout, scale=scale_value, **kept
        )
        result: torch.Tensor = attended[0]
        return result

    empty = query.new_empty(0)
    return (*_pull_back(attend, [query, key, value], gradient), empty, empty)


def _matmul_backward(
    gradient: torch.Tensor, left: torch.Tensor, right: torch.Tensor, mask: Sequence[bool]
) -> tuple[torch.Tensor | None, ...]:
    """ATen's own formula is composite on the CPU; torch_npu has an operator for it."""
    found = _pull_back(torch.matmul, [left, right], gradient)
    return tuple(one if wanted else None for one, wanted in zip(found, mask))


def _only(compute: Callable[..., tuple[Any, ...]]) -> Kernel:
    """The first result alone, for operators that return one tensor."""

    def kernel(*args: Any, **kwargs: Any) -> Any:
        return compute(*args, **kwargs)[0]

    return kernel


KERNELS: Mapping[str, Kernel] = {
    "npu_rms_norm": operators.compute_rms_norm,
    "npu_rms_norm_backward": _rms_norm_backward,
    "npu_add_rms_norm": operators.compute_add_rms_norm,
    "npu_swiglu": _only(operators.compute_swiglu),
    "npu_swiglu_backward": _swiglu_backward,
    "npu_gelu": _only(operators.compute_gelu),
    "npu_gelu_backward": _gelu_backward,
    "npu_rotary_mul": _only(operators.compute_rotary_mul),
    "npu_rotary_mul_backward": _rotary_mul_backward,
    "npu_fusion_attention": operators.compute_fusion_attention,
    "npu_fusion_attention_grad": _attention_backward,
    "npu_fusion_attention_v3": _attend,
    "npu_fusion_attention_grad_v3": _attention_backward,
}
# Operators of ATen that have no kernel on the CPU.
ATEN_KERNELS: Mapping[str, Kernel] = {"matmul_backward": _matmul_backward}
