"""Composed equivalents: what a function computes, by its golden formula in float32 and elementary operators.

They take the function's own arguments, run on the device of its tensors, are differentiable, and stand in for a fused
kernel that is under suspicion. Part of the live half.
"""

# ruff: noqa: A002, A006 -- the arguments have the names that the functions give them
from __future__ import annotations

from functools import cache
from typing import Any, Callable, Optional, Union

import torch

from precision_align.library.cases import Compute
from precision_align.library.folders import load_golden
from precision_align.library.formulas import in_float32

Tensor = torch.Tensor


def list_composed() -> dict[str, Compute]:
    """Name of a function, as the source ``functions`` records it -> its equivalent.

    An equivalent raises NotImplementedError for arguments that its formula does not know.
    """
    return dict(_EQUIVALENTS)


@cache
def _load(name: str) -> Compute:
    return in_float32(load_golden(name), keep=(1, 2) if name == "batch_norm" else ())


def _run(name: str, like: Tensor, **inputs: Any) -> Any:
    with torch.device(like.device):  # masks and indices that a formula makes belong on the device, too
        return _load(name)(**inputs)


def _refuse(wrong: bool, text: str) -> None:
    if wrong:
        raise NotImplementedError(text)


def _gelu(input: Tensor, approximate: str = "none") -> Any:
    return _run("gelu", input, x=input, approximate=approximate)


def _mish(input: Tensor, inplace: bool = False) -> Any:
    _refuse(inplace, "the formula does not work in place")
    return _run("mish", input, x=input)


def _soften(log: bool) -> Compute:
    def run(input: Tensor, dim: Optional[int] = None, _stacklevel: int = 3, dtype: Optional[torch.dtype] = None) -> Any:
        _refuse(dim is None, "softmax without dim")
        return _run("softmax", input, x=input if dtype is None else input.to(dtype), dim=dim, log=log)

    return run


def _soften_plain(log: bool) -> Compute:
    """``torch.softmax`` and ``Tensor.softmax`` have no ``_stacklevel``."""
    soften = _soften(log)
    return lambda input, dim, dtype=None: soften(input, dim, dtype=dtype)


def _layer_norm(
    input: Tensor,
    normalized_shape: Any,
    weight: Optional[Tensor] = None,
    bias: Optional[Tensor] = None,
    eps: float = 1e-5,
) -> Any:
    return _run("layer_norm", input, x=input, weight=weight, bias=bias, eps=eps, dims=len(normalized_shape))


def _rms_norm(
    input: Tensor, normalized_shape: Any, weight: Optional[Tensor] = None, eps: Optional[float] = None
) -> Any:
    _refuse(len(normalized_shape) != 1, "rms_norm over several dimensions")
    return _run("rms_norm", input, x=input, weight=weight, eps=torch.finfo(input.dtype).eps if eps is None else eps)


def _group_norm(
    input: Tensor, num_groups: int, weight: Optional[Tensor] = None, bias: Optional[Tensor] = None, eps: float = 1e-5
) -> Any:
    return _run("group_norm", input, x=input, weight=weight, bias=bias, groups=num_groups, eps=eps)


def _batch_norm(
    input: Tensor,
    running_mean: Optional[Tensor],
    running_var: Optional[Tensor],
    weight: Optional[Tensor] = None,
    bias: Optional[Tensor] = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Any:
    channels = input.shape[1]
    old = (input.new_zeros(channels) if running_mean is None else running_mean,
           input.new_ones(channels) if running_var is None else running_var)  # fmt: skip
    weight = input.new_ones(channels) if weight is None else weight
    bias = input.new_zeros(channels) if bias is None else bias
    y, mean, variance = _run(
        "batch_norm", input, x=input, running_mean=old[0], running_var=old[1], weight=weight, bias=bias,
        training=training, momentum=momentum, eps=eps,
    )  # fmt: skip
    if training:
        with torch.no_grad():
            for buffer, new in ((running_mean, mean), (running_var, variance)):
                if buffer is not None:
                    buffer.copy_(new)
    return y


def _cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Optional[Tensor] = None,
    size_average: Any = None,
    ignore_index: int = -100,
    reduce: Any = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Any:
    _refuse(target.is_floating_point() or size_average is not None or reduce is not None, "targets that are shares")
    _refuse(input.dim() != 2, f"logits of {input.dim()} dimensions")
    return _run(
        "cross_entropy", input, x=input, target=target, weight=weight, ignore_index=ignore_index,
        smoothing=label_smoothing, reduction=reduction,
    )  # fmt: skip


def _attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Optional[Tensor] = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: Optional[float] = None,
    enable_gqa: bool = False,
) -> Any:
    _refuse(dropout_p > 0, "attention with dropout")
    _refuse(query.dim() != 4, f"queries of {query.dim()} dimensions")
    causal = "top-left" if is_causal else "none"
    return _run("attention", query, query=query, key=key, value=value, mask=attn_mask, causal=causal, scale=scale)


def _conv2d(
    input: Tensor,
    weight: Tensor,
    bias: Optional[Tensor] = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Any:
    _refuse(input.dim() != 4, "images without a batch")
    geometry = {"stride": _one(stride), "padding": _one(padding), "dilation": _one(dilation)}
    return _run("conv2d", input, x=input, weight=weight, bias=bias, groups=groups, **geometry)


def _one(sizes: Union[int, str, tuple[int, ...]]) -> int:
    """The size of all dimensions."""
    both = {sizes} if isinstance(sizes, (int, str)) else set(sizes)
    _refuse(len(both) != 1 or isinstance(sizes, str), f"a geometry of {sizes!r}")
    return int(both.pop())


def _huber_loss(
    input: Tensor, target: Tensor, reduction: str = "mean", delta: float = 1.0, weight: Optional[Tensor] = None
) -> Any:
    _refuse(weight is not None, "weights")
    return _run("huber_loss", input, x=input, target=target, delta=delta, reduction=reduction)


def _npu_swiglu(self: Tensor, dim: int = -1) -> Any:
    return _run("swiglu", self, x=self, dim=dim)


def _npu_gelu(self: Tensor, approximate: str = "none") -> Any:
    return _run("gelu", self, x=self, approximate=approximate)


def _npu_rms_norm(self: Tensor, gamma: Tensor, epsilon: float = 1e-6) -> Any:
    _refuse(gamma.dim() != 1, "rms_norm over several dimensions")
    scale = torch.rsqrt(self.float().square().mean(-1, keepdim=True) + epsilon)
    return _run("rms_norm", self, x=self, weight=gamma, eps=epsilon), scale


_EQUIVALENTS: dict[str, Callable[..., Any]] = {
    "torch.nn.functional.gelu": _gelu,
    "torch.nn.functional.mish": _mish,
    "torch.nn.functional.softmax": _soften(log=False),
    "torch.nn.functional.log_softmax": _soften(log=True),
    "torch.softmax": _soften_plain(log=False),
    "torch.log_softmax": _soften_plain(log=True),
    "torch.nn.functional.layer_norm": _layer_norm,
    "torch.nn.functional.rms_norm": _rms_norm,
    "torch.nn.functional.group_norm": _group_norm,
    "torch.nn.functional.batch_norm": _batch_norm,
    "torch.nn.functional.cross_entropy": _cross_entropy,
    "torch.nn.functional.scaled_dot_product_attention": _attend,
    "torch.nn.functional.conv2d": _conv2d,
    "torch.nn.functional.huber_loss": _huber_loss,
    "npu.npu_swiglu": _npu_swiglu,
    "npu.npu_gelu": _npu_gelu,
    "npu.npu_rms_norm": _npu_rms_norm,
}
