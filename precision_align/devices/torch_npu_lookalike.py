"""A stand-in for the module ``torch_npu``, so that code calling its fused operators runs without Ascend.

Only an explicit ``install_lookalike()`` puts it into ``sys.modules``; ``torch_npu.is_simulated`` is True and the
version says so. The operators are registered with the dispatcher as ``npu::npu_*``, as the real ones are: tools that
watch operators see one call, on CPU tensors and on the simulated device. Numerics are a model: float32 inside, one
rounding.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, cast

import torch

from precision_align.core.errors import Unavailable
from precision_align.devices import lookalike_operators as operators
from precision_align.devices.backend import run_on_cpu
from precision_align.devices.dispatch import open_library
from precision_align.devices.npu import is_real_torch_npu_present

VERSION = "0.0+simulated"


@dataclass(frozen=True)
class _Fused:
    """One operator: schema, arithmetic (always a tuple), and which results have a gradient."""

    schema: str
    compute: Callable[..., tuple[Any, ...]]
    differentiable: tuple[int, ...] = (0,)

    @property
    def name(self) -> str:
        return self.schema.partition("(")[0]


_OPERATORS = (
    _Fused(
        "npu_rms_norm(Tensor self, Tensor gamma, float epsilon=1e-06) -> (Tensor, Tensor)", operators.compute_rms_norm
    ),
    _Fused(
        "npu_add_rms_norm(Tensor x1, Tensor x2, Tensor gamma, float epsilon=1e-06) -> (Tensor, Tensor, Tensor)",
        operators.compute_add_rms_norm,
        # The real operator has no gradient at all (op-plugin derivatives.yaml); this one has, to train on it here.
        (0, 2),
    ),
    _Fused("npu_swiglu(Tensor self, int dim=-1) -> Tensor", operators.compute_swiglu),
    _Fused("npu_gelu(Tensor self, *, str approximate='none') -> Tensor", operators.compute_gelu),
    _Fused(
        "npu_rotary_mul(Tensor self, Tensor r1, Tensor r2, str rotary_mode='half', Tensor? rotate=None) -> Tensor",
        operators.compute_rotary_mul,
    ),
    _Fused(
        "npu_fusion_attention(Tensor query, Tensor key, Tensor value, int head_num, str input_layout, "
        "Tensor? pse=None, Tensor? padding_mask=None, Tensor? atten_mask=None, float scale=1., float keep_prob=1., "
        "int pre_tockens=2147483647, int next_tockens=2147483647, int inner_precise=0, int[]? prefix=None, "
        "int[]? actual_seq_qlen=None, int[]? actual_seq_kvlen=None, int sparse_mode=0, bool gen_mask_parallel=True, "
        "bool sync=False, str softmax_layout='', Tensor? sink=None, Tensor? dropout_mask=None, int seed=0, "
        "int offset=0) -> (Tensor, Tensor, Tensor, Tensor, int, int, int)",
        operators.compute_fusion_attention,
    ),
)


class _State:
    libraries: tuple[Any, ...] = ()


class _WithGradient(torch.autograd.Function):
    """Forward: the operator. Backward: the arithmetic once more, differentiated in float32."""

    @staticmethod
    def forward(ctx: Any, fused: _Fused, spec: Any, leaves: Sequence[Any], *tensors: torch.Tensor) -> Any:
        args, kwargs = _fill(leaves, spec, tensors)
        with torch._C._AutoDispatchBelowAutograd():
            results = _as_tuple(getattr(torch.ops.npu, fused.name)(*args, **kwargs))
        ctx.fused, ctx.spec, ctx.leaves = fused, spec, leaves
        ctx.save_for_backward(*tensors)
        fixed = [
            one
            for place, one in enumerate(results)
            if isinstance(one, torch.Tensor) and place not in fused.differentiable
        ]
        ctx.mark_non_differentiable(*fixed)
        return results

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        needs = ctx.needs_input_grad[3:]
        tensors = [tensor.detach().requires_grad_(needed) for tensor, needed in zip(ctx.saved_tensors, needs)]
        args, kwargs = _fill(ctx.leaves, ctx.spec, tensors)
        with torch.enable_grad():
            results = ctx.fused.compute(*args, **kwargs)
        found = iter(
            torch.autograd.grad(
                [results[place] for place in ctx.fused.differentiable],
                [tensor for tensor, needed in zip(tensors, needs) if needed],
                [gradients[place] for place in ctx.fused.differentiable],
                allow_unused=True,
            )
        )
        return (None, None, None, *(next(found) if needed else None for needed in needs))


def _as_tuple(result: Any) -> tuple[Any, ...]:
    return tuple(result) if isinstance(result, (list, tuple)) else (result,)


def _fill(leaves: Sequence[Any], spec: Any, tensors: Sequence[torch.Tensor]) -> Any:
    """The call's (args, kwargs) with its tensors replaced, in order."""
    supply = iter(tensors)
    filled = [next(supply) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
    return torch.utils._pytree.tree_unflatten(filled, spec)


def _bind_gradient(fused: _Fused) -> Callable[..., Any]:
    apply: Any = _WithGradient.apply

    def kernel(*args: Any, **kwargs: Any) -> Any:
        leaves, spec = torch.utils._pytree.tree_flatten((args, kwargs))
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        placeholders = [torch.empty(0) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        results = apply(fused, spec, placeholders, *tensors)
        return results if len(results) > 1 else results[0]

    return kernel


def _bind_arithmetic(fused: _Fused) -> Callable[..., Any]:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        results = fused.compute(*args, **kwargs)
        return results if len(results) > 1 else results[0]

    return kernel


def _bind_simulated(fused: _Fused) -> Callable[..., Any]:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        return run_on_cpu(getattr(torch.ops.npu, fused.name).default, *args, **kwargs)

    return kernel


def _register() -> tuple[Any, ...]:
    """Once a process: schemas and kernels. Returns the libraries, which must stay alive."""
    definitions = cast(Any, torch.library).Library("npu", "FRAGMENT")
    for fused in _OPERATORS:
        definitions.define(fused.schema)
        definitions.impl(fused.name, _bind_arithmetic(fused), "CompositeExplicitAutograd")
        definitions.impl(fused.name, _bind_gradient(fused), "Autograd")
    simulated = open_library("npu", "PrivateUse1")
    for fused in _OPERATORS:
        simulated.impl(fused.name, _bind_simulated(fused))
    return definitions, simulated


def _attend(*args: Any, **kwargs: Any) -> Any:
    """npu_fusion_attention: draws the dropout mask (no bits in common with a device's), then calls the operator."""
    call = inspect.signature(operators.compute_fusion_attention).bind(*args, **kwargs).arguments
    if call.get("keep_prob", 1.0) < 1 and call.get("dropout_mask") is None:
        shape = operators.attention_shape(call["query"], call["key"], call["head_num"], call["input_layout"])
        call["dropout_mask"] = torch.rand(shape, device=call["query"].device) < call["keep_prob"]
    return torch.ops.npu.npu_fusion_attention(**call)


def _make_module() -> ModuleType:
    module = ModuleType("torch_npu", __doc__)
    module.__spec__ = ModuleSpec("torch_npu", None)
    vars(module).update(__version__=VERSION, is_simulated=True)
    vars(module).update({fused.name: getattr(torch.ops.npu, fused.name) for fused in _OPERATORS})

    def find_missing(name: str) -> Any:
        if name == "npu" and "torch.npu" in sys.modules:
            return sys.modules["torch.npu"]
        raise AttributeError(
            f"torch_npu.{name}: the simulated torch_npu has {', '.join(fused.name for fused in _OPERATORS)}, "
            "and npu once the simulated device is installed."
        )

    vars(module).update(npu_fusion_attention=_attend, __getattr__=find_missing)
    return module


def install_lookalike() -> ModuleType:
    """Put the look-alike into ``sys.modules["torch_npu"]``; the second call returns the first one's module.

    Raises Unavailable where the real torch_npu is loaded or could be imported.
    """
    loaded = sys.modules.get("torch_npu")
    if loaded is not None and getattr(loaded, "is_simulated", False):
        return loaded
    if is_real_torch_npu_present():
        raise Unavailable(
            "The real torch_npu is installed here; the simulated one does not hide it. Use an environment without "
            "torch_npu for simulated runs."
        )
    if not _State.libraries:
        _State.libraries = _register()
    module = _make_module()
    sys.modules["torch_npu"] = module
    return module


def uninstall_lookalike() -> None:
    """Take the look-alike out of ``sys.modules``; a real torch_npu stays. Operators stay registered, out of sight."""
    if getattr(sys.modules.get("torch_npu"), "is_simulated", False):
        del sys.modules["torch_npu"]
