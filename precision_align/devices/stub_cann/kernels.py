"""Lets the operators of the real torch_npu compute on the stub CANN: each kernel runs the CPU's on the device's memory.

Only what torch_npu registers is replaced. Everything around it stays its own: views, factories, copies between host and
device, casts (and what they silently change), autocast lists, gradients of its fused operators, its CPU fallback for
operators that it lacks, streams, generators. Profiles and faults act as on the simulated device.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from typing import Any

import torch

from precision_align.devices import backend
from precision_align.devices.aliasing import alias_on_cpu, is_on_npu
from precision_align.devices.dispatch import DispatchKey, find_operator, open_library
from precision_align.devices.stub_cann import fused, operators
from precision_align.devices.stub_cann.randomness import draw, is_random

_ND = 2  # aclFormat of plain order

# torch_npu's own stay: they only make views or memory, talk to the runtime, or decide dtypes.
_KEPT = frozenset(
    [
        "_copy_from", "_copy_from_and_resize", "_has_compatible_shallow_copy_type", "_has_same_storage_numel",
        "_local_scalar_dense", "_pin_memory", "_reshape_alias", "_resize_output", "_to_copy", "alias", "as_strided",
        "as_strided_", "detach", "empty", "empty_like", "empty_permuted", "empty_strided", "expand", "is_pinned",
        "is_set_to", "lift", "lift_fresh", "narrow", "new_empty", "new_empty_strided", "permute", "record_stream",
        "resize_", "resize_as_", "select", "set_", "slice", "split", "split_with_sizes", "squeeze", "t",
        "transpose", "transpose_", "unfold", "unsqueeze", "view", "view_as_complex", "view_as_real",
    ]
)  # fmt: skip


_torch: Any = torch  # torch_npu adds torch.npu


class _State:
    """What has been registered; libraries must stay alive."""

    libraries: list[Any] | None = None


def copy_to_npu(host: torch.Tensor) -> torch.Tensor:
    """A tensor of torch_npu's own allocator with the values and, where they are dense, the strides of a CPU tensor."""
    host = host.resolve_conj().resolve_neg()
    dense = host if _is_dense(host) else host.contiguous()
    made = torch.empty_strided(dense.shape, dense.stride(), dtype=dense.dtype, device="npu")
    if dense.numel():
        alias_on_cpu(made).copy_(dense)
    return made


def _is_dense(host: torch.Tensor) -> bool:
    return host.is_contiguous() or bool(torch._prims_common.is_non_overlapping_and_dense_or_false(host))


def _after_queue(function: Callable[..., Any]) -> Callable[..., Any]:
    """Copies and operators that torch_npu has queued come first."""

    def kernel(*args: Any, **kwargs: Any) -> Any:
        _torch.npu.synchronize()
        return function(*args, **kwargs)

    return kernel


def _bind(operator: Any) -> Callable[..., Any]:
    draws = is_random(operator)

    def kernel(*args: Any, **kwargs: Any) -> Any:
        _torch.npu.synchronize()
        if operators.holds_private_formats():
            args, kwargs = torch.utils._pytree.tree_map(_make_plain, (args, kwargs))
            _torch.npu.synchronize()  # the casts are queued as well
        if draws:
            return draw(operator, backend.run_on_cpu, args, kwargs)
        return backend.run_on_cpu(operator, *args, **kwargs)

    return kernel


def _make_plain(value: Any) -> Any:
    """A tensor in a private format as one in plain order; in-place operators on it are lost, as no test needs them."""
    if not is_on_npu(value):
        return value
    torch_npu = sys.modules["torch_npu"]
    private = int(torch_npu.get_npu_format(value)) in (operators.NC1HWC0, operators.FRACTAL_NZ)
    return torch_npu.npu_format_cast(value, _ND) if private else value


def _bind_copy(native: Any) -> Callable[..., torch.Tensor]:
    """copy_: between host and device torch_npu's own, queued as on a device; else the CPU's."""
    keys = torch._C.DispatchKeySet(DispatchKey.PrivateUse1)

    def copy(target: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
        crosses = is_on_npu(target) != is_on_npu(source)
        if crosses and target.dtype == source.dtype and target.is_contiguous() and source.is_contiguous():
            native.call_boxed(keys, target, source, non_blocking)
            return target
        _torch.npu.synchronize()
        on_host = alias_on_cpu(target) if is_on_npu(target) else target
        on_host.copy_(alias_on_cpu(source) if is_on_npu(source) else source)
        return target

    return copy


def install_kernels() -> None:
    """Register the kernels; once a process, after torch_npu is imported. A second call does nothing."""
    if _State.libraries:
        return
    backend.set_placing(copy_to_npu)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of each kernel that replaces another, which is the purpose
        _State.libraries = [*_replace_aten(), *_serve_fused()]


def _replace_aten() -> list[Any]:
    library = open_library("aten", "PrivateUse1")
    native_copy = torch.library.get_kernel("aten::copy_", "PrivateUse1")
    for name in torch._C._dispatch_get_registrations_for_dispatch_key("PrivateUse1"):
        operator = find_operator(name) if _is_replaced(name) else None
        if operator is not None:
            library.impl(name[len("aten::") :], _bind(operator), allow_override=True)
    library.impl("copy_", _bind_copy(native_copy), allow_override=True)
    library.impl("convolution_overrideable", _after_queue(backend.convolve), allow_override=True)
    library.impl("convolution_backward_overrideable", _after_queue(backend.convolve_backward), allow_override=True)
    return [library]


def _is_replaced(name: str) -> bool:
    if not name.startswith("aten::") or name[len("aten::") :].partition(".")[0] in _KEPT:
        return False
    return bool(torch._C._dispatch_has_computed_kernel_for_dispatch_key(name, "CPU"))


def _serve_fused() -> list[Any]:
    """The fused operators get a kernel for CPU tensors, which is what those of the device then run."""
    libraries = []
    for namespace, kernels in (("npu", fused.KERNELS), ("aten", fused.ATEN_KERNELS)):
        on_cpu, on_npu = open_library(namespace, "CPU"), open_library(namespace, "PrivateUse1")
        for name, kernel in kernels.items():
            on_cpu.impl(name, kernel)
            operator = getattr(getattr(torch.ops, namespace), name).default
            on_npu.impl(name, _bind(operator), allow_override=True)
        libraries += [on_cpu, on_npu]
    return libraries
