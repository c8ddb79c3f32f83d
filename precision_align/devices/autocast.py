"""Autocast on the simulated device: which operators compute in low precision, which in float32.

Two sets of rules. `torch_npu`: those of torch_npu, which are CUDA's without ``rms_norm``, twelve upsample operators,
``vdot`` and ``linalg_vecdot`` (source: torch_npu's AutoCastOps.cpp against ATen/autocast_mode.h of torch 2.13, see
facts/opmap.md). `cpu`: those of the CPU, for profile `none`; the names come from the dispatcher, so that they are
this torch's own.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from precision_align.devices.aliasing import is_on_npu
from precision_align.devices.dispatch import DispatchKey, find_operator, open_library

_NPU_LOWER = """
_convolution.deprecated _convolution conv1d conv2d conv3d conv_tbc conv_transpose1d conv_transpose2d.input
conv_transpose3d.input convolution prelu addmm addmv addr matmul einsum mm mv linear addbmm baddbmm bmm chain_matmul
linalg_multi_dot _thnn_fused_lstm_cell _thnn_fused_gru_cell lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell
scaled_dot_product_attention
"""
_NPU_FLOAT32 = """
acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan pow.Tensor_Scalar pow.Tensor_Tensor
pow.Scalar softplus layer_norm native_layer_norm group_norm frobenius_norm.dim nuclear_norm nuclear_norm.dim
cosine_similarity poisson_nll_loss cosine_embedding_loss nll_loss nll_loss2d hinge_embedding_loss kl_div l1_loss
smooth_l1_loss huber_loss mse_loss margin_ranking_loss multilabel_margin_loss soft_margin_loss triplet_margin_loss
multi_margin_loss binary_cross_entropy_with_logits dist pdist cdist renorm logsumexp
"""
_NPU_FLOAT32_RESULT = """
prod prod.dim_int softmax.int log_softmax.int cumprod cumsum linalg_vector_norm linalg_matrix_norm
linalg_matrix_norm.str_ord sum sum.dim_IntList
"""
_NPU_PROMOTE = "addcdiv addcmul atan2 bilinear cross dot grid_sampler index_put tensordot scatter_add"

# The CPU's list has no header; what is neither here nor in the next line computes in float32.
_CPU_LOWER = """
_addmm_activation _convolution.deprecated _native_multi_head_attention addbmm addmm baddbmm bmm conv1d conv1d.padding
conv2d conv2d.padding conv3d conv3d.padding conv_tbc conv_transpose1d conv_transpose2d.input conv_transpose3d.input
linalg_vecdot linear matmul mkldnn_rnn_layer mm prelu scaled_dot_product_attention
"""
_CPU_PROMOTE = "cat stack index_copy"

Rules = Mapping[str, str]


def _tabulate(**kinds: str) -> dict[str, str]:
    return {name: kind for kind, names in kinds.items() for name in names.split()}


def _read_cpu_rules() -> dict[str, str]:
    registered = torch._C._dispatch_get_registrations_for_dispatch_key("AutocastCPU")
    rules = {name[len("aten::") :]: "float32" for name in registered if name.startswith("aten::")}
    rules.update({name: "lower" for name in _CPU_LOWER.split() if name in rules})
    rules.update({name: "promote" for name in _CPU_PROMOTE.split() if name in rules})
    return rules


RULES: dict[str, Rules] = {
    "torch_npu": _tabulate(
        lower=_NPU_LOWER, float32=_NPU_FLOAT32, float32_result=_NPU_FLOAT32_RESULT, promote=_NPU_PROMOTE
    ),
    "cpu": _read_cpu_rules(),
}


class _Current:
    """The rules in force, their kernels, and the casts of parameters that one autocast region shares."""

    rules: str = ""
    library: Any = None
    casts: dict[int, tuple[Any, torch.Tensor]] = {}  # noqa: RUF012 - one per process, as the device is


def select_rules(name: str) -> None:
    """Put the rules "cpu" or "torch_npu" in force.

    The kernels of the rules before are taken away: an operator without a rule must reach its composite with autocast
    still on, and only the dispatcher's own fall-through does that.
    """
    if name == _Current.rules:
        return
    if _Current.library is not None:
        _Current.library._destroy()
    library = open_library("aten", "AutocastPrivateUse1")
    for operator_name, kind in sorted(RULES[name].items()):
        operator = find_operator(f"aten::{operator_name}")
        if operator is not None:
            library.impl(operator_name, _bind(kind, operator))
    _Current.rules, _Current.library = name, library


def _is_castable(value: torch.Tensor) -> bool:
    return value.is_floating_point() and value.dtype != torch.float64 and is_on_npu(value)


def _is_cacheable(value: torch.Tensor, dtype: torch.dtype) -> bool:
    """ATen's own condition: float32 leaves that need a gradient, cast to the region's low precision."""
    return (
        torch.is_autocast_cache_enabled()
        and value.dtype == torch.float32
        and dtype == torch.get_autocast_dtype("npu")
        and value.requires_grad
        and value.is_leaf
        and not value._is_view()
    )


def _cast_tensor(value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Cast as ATen's ``cached_cast`` does: one cast a parameter and region, so that its gradients add up alike."""
    if not _is_castable(value) or value.dtype == dtype:
        return value
    if not _is_cacheable(value, dtype):
        return value.to(dtype)
    known = _Current.casts.get(id(value))
    if known is not None and known[0]() is value:
        return known[1]
    cast = value.to(dtype)
    _Current.casts[id(value)] = (weakref.ref(value), cast)
    return cast


def cast_tree(value: Any, dtype: torch.dtype) -> Any:
    """The tensors of an argument (lists and tuples included) in that dtype."""
    if isinstance(value, torch.Tensor):
        return _cast_tensor(value, dtype)
    if isinstance(value, (list, tuple)):
        return type(value)(cast_tree(item, dtype) for item in value)
    return value


def _widest(args: Sequence[Any], kwargs: Mapping[str, Any]) -> torch.dtype:
    leaves = torch.utils._pytree.tree_leaves((args, kwargs))
    dtypes = {leaf.dtype for leaf in leaves if isinstance(leaf, torch.Tensor) and _is_castable(leaf)}
    return torch.float32 if torch.float32 in dtypes else torch.get_autocast_dtype("npu")


def _call_with_float32_result(operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Softmax and sums: the operator converts by itself if it is told the result's dtype."""
    first = args[0]
    names = [argument.name for argument in operator._schema.arguments]
    told = kwargs.get("dtype") is not None or ("dtype" in names and len(args) > names.index("dtype"))
    if told or first.dtype not in (torch.float16, torch.bfloat16):
        return operator(*args, **kwargs)
    if "dtype" in names:
        return operator(*args, **{**kwargs, "dtype": torch.float32})
    return operator(*cast_tree(list(args), torch.float32), **kwargs)


def _apply_rule(kind: str, operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    if kind == "float32_result":
        return _call_with_float32_result(operator, args, kwargs)
    if kind == "lower":
        dtype = torch.get_autocast_dtype("npu")
    else:
        dtype = torch.float32 if kind == "float32" else _widest(args, kwargs)
    return operator(*cast_tree(list(args), dtype), **{name: cast_tree(value, dtype) for name, value in kwargs.items()})


def _bind(kind: str, operator: Any) -> Any:
    keys = torch._C.DispatchKeySet(DispatchKey.AutocastPrivateUse1)

    def kernel(*args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(keys):
            return _apply_rule(kind, operator, args, kwargs)

    return kernel


def _clear_with_autocast() -> None:
    """torch clears its cache of casts when the outermost region ends; ours has to go with it."""
    clear = torch.clear_autocast_cache

    def clear_autocast_cache() -> None:
        _Current.casts.clear()
        clear()

    torch.clear_autocast_cache = clear_autocast_cache


def register_autocast() -> list[Any]:
    """Register autocast for the device type; returns the libraries, which must stay alive."""
    anything = open_library("_", "")
    anything.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
    select_rules("cpu")
    _clear_with_autocast()
    return [anything]
