"""Kernels of the simulated `npu`: every ATen operator runs the CPU's kernel on aliases of the `npu` tensors.

Each operator with a CPU kernel of its own gets a kernel here, because a fallback alone would lose against ATen's
composite kernels, which compute the same thing in another order (LayerNorm differed by 5e-7). What is left goes to a
fallback. One replaceable function, ``Execution``, stands between: profiles and faults act there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from precision_align.devices.aliasing import alias_on_cpu, alias_on_npu, check_index, is_on_npu, restride
from precision_align.devices.dispatch import DispatchKey, Execution, find_operator, open_library, run_operator

# These only make another view of a storage and are the same code on every device.
_METADATA_OPERATORS = frozenset(
    [
        "aten::as_strided",
        "aten::view",
        "aten::_reshape_alias",
        "aten::unfold",
        "aten::set_",
        "aten::set_.source_Storage",
        "aten::set_.source_Storage_storage_offset",
        "aten::set_.source_Tensor",
    ]
)

# Registered by hand below, or better left to ATen's composite kernel.
_NOT_GENERATED = frozenset(
    [
        "aten::empty.memory_format",
        "aten::empty_strided",
        "aten::_copy_from",
        "aten::_copy_from_and_resize",
        "aten::convolution_overrideable",
        "aten::convolution_backward_overrideable",
        "aten::resize_",
        "aten::_pin_memory",
        "aten::is_pinned",
        "aten::copy_",
        "aten::contiguous",
    ]
)

# Operators that take lengths or offsets from host memory on every device.
_HOST_ARGUMENTS = frozenset(["aten::_pack_padded_sequence", "aten::_ctc_loss", "aten::_ctc_loss.Tensor"])


class _Current:
    """The execution in force, and how results get onto the device; one per process, as the device is."""

    execution: Execution = staticmethod(run_operator)
    place: Callable[[torch.Tensor], torch.Tensor] = staticmethod(alias_on_npu)


def set_execution(execution: Execution | None) -> None:
    """Let every operator of the device run through ``execution(operator, cpu_args, cpu_kwargs)``; None: natively."""
    _Current.execution = execution or run_operator


def set_placing(place: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Let ``place`` turn a CPU result into a tensor of the device, where an alias of its memory will not do."""
    _Current.place = place


def current_execution() -> Execution:
    """What every operator of the device runs through."""
    return _Current.execution


@contextmanager
def native() -> Iterator[None]:
    """Inside it operators run the CPU's kernels unchanged, whatever profile and faults are in force."""
    execution, _Current.execution = _Current.execution, run_operator
    try:
        yield
    finally:
        _Current.execution = execution


def is_native() -> bool:
    """Whether operators run the CPU's kernels unchanged."""
    return _Current.execution is run_operator


@dataclass(frozen=True)
class _Signature:
    """What the fallback must know of an operator's schema.

    ``name``: with namespace and overload; ``written``: (position, name) of arguments that it writes to; ``returned``:
    for each result the (position, name) of the argument that it is, or None for a new tensor.
    """

    name: str
    metadata_only: bool
    written: tuple[tuple[int, str], ...]
    returned: tuple[tuple[int, str] | None, ...]


_signatures: dict[Any, _Signature] = {}


def _qualified_name(schema: Any) -> str:
    return f"{schema.name}.{schema.overload_name}" if schema.overload_name else str(schema.name)


def _read_signature(operator: Any) -> _Signature:
    schema = operator._schema
    places = {}
    for position, argument in enumerate(schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            places[frozenset(argument.alias_info.before_set)] = (position, argument.name)
    returned = tuple(
        places.get(frozenset(result.alias_info.before_set)) if result.alias_info is not None else None
        for result in schema.returns
    )
    written = tuple(
        (position, argument.name)
        for position, argument in enumerate(schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    )
    name = _qualified_name(schema)
    return _Signature(name, name in _METADATA_OPERATORS, written, returned)


def _signature_of(operator: Any) -> _Signature:
    signature = _signatures.get(operator)
    if signature is None:
        signature = _signatures[operator] = _read_signature(operator)
    return signature


def _to_cpu(value: Any, aliases: dict[int, torch.Tensor]) -> Any:
    """The value with `npu` tensors and devices replaced; one tensor passed twice gets one alias."""
    if isinstance(value, torch.Tensor):
        if not is_on_npu(value):
            return value
        alias = aliases.get(id(value))
        if alias is None:
            alias = aliases[id(value)] = alias_on_cpu(value)
        return alias
    if isinstance(value, (list, tuple)):
        return [_to_cpu(item, aliases) for item in value]
    if isinstance(value, torch.device) and value.type == "npu":
        check_index(value)
        return torch.device("cpu")
    return value


def _to_npu(result: Any) -> Any:
    if isinstance(result, torch.Tensor):
        return _Current.place(result)
    if isinstance(result, (list, tuple)):
        return [_to_npu(item) for item in result]
    return result


def _pick(place: tuple[int, str], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    position, name = place
    return args[position] if position < len(args) else kwargs.get(name)


def _follow_reshape(original: Any, alias: Any) -> None:
    """Give the `npu` tensor the shape, strides or memory that an in-place operator gave its alias."""
    if isinstance(original, (list, tuple)):
        for one, other in zip(original, alias):
            _follow_reshape(one, other)
    elif is_on_npu(original) and not _look_alike(original, alias):
        storage = original.untyped_storage()
        start = alias.data_ptr() - storage.data_ptr()
        if 0 <= start < storage.nbytes():
            # The same memory: keep the storage object, other views hold it too.
            original.data = restride(original, alias.shape, alias.stride(), start // alias.element_size())
        else:
            original.data = _Current.place(alias)


def _look_alike(original: torch.Tensor, alias: torch.Tensor) -> bool:
    same_view = original.shape == alias.shape and original.stride() == alias.stride()
    return same_view and (original.numel() == 0 or original.data_ptr() == alias.data_ptr())


def _resize(tensor: torch.Tensor, size: Sequence[int], *, memory_format: Any = None) -> torch.Tensor:
    """resize_: aliases cannot grow a storage, so a larger one takes the old elements along."""
    wanted = torch.empty(size, dtype=tensor.dtype, memory_format=memory_format or torch.contiguous_format)
    offset, storage = int(tensor.storage_offset()), tensor.untyped_storage()
    if (offset + wanted.numel()) * wanted.element_size() <= storage.nbytes():
        tensor.data = restride(tensor, wanted.shape, wanted.stride(), offset)
        return tensor
    kept = storage.nbytes() // wanted.element_size() - offset
    if tensor.numel():
        flat = alias_on_cpu(restride(tensor, (kept,), (1,), offset))
        wanted.as_strided((kept,), (1,)).copy_(flat)
    tensor.data = alias_on_npu(wanted)
    return tensor


def _refuse_mixed_devices(signature: _Signature, args: Sequence[Any]) -> None:
    """A device refuses CPU tensors other than scalars; sharing memory with the CPU, ours would take them silently."""
    tensors = [value for value in args if isinstance(value, torch.Tensor)]
    strangers = [tensor for tensor in tensors if not is_on_npu(tensor) and tensor.dim()]
    if strangers and len(strangers) < len(tensors) and signature.name not in _HOST_ARGUMENTS:
        raise RuntimeError(
            "Expected all tensors to be on the same device, but found at least two devices, "
            f"{strangers[0].device} and npu:0! ({signature.name}, tensor of shape {tuple(strangers[0].shape)})"
        )


def run_on_cpu(operator: Any, *args: Any, **kwargs: Any) -> Any:
    """Run an operator of `npu` tensors with the CPU's kernel, through the execution in force."""
    signature = _signature_of(operator)
    if signature.metadata_only:
        return operator._op_dk(DispatchKey.CPU, *args, **kwargs)
    _refuse_mixed_devices(signature, args)
    aliases: dict[int, torch.Tensor] = {}
    cpu_args = [_to_cpu(value, aliases) for value in args]
    cpu_kwargs = {name: _to_cpu(value, aliases) for name, value in kwargs.items()}
    result = _Current.execution(_take_numbers(operator, args), cpu_args, cpu_kwargs)
    for place in signature.written:
        original = _pick(place, args, kwargs)
        if original is not None:
            _follow_reshape(original, _pick(place, cpu_args, cpu_kwargs))
    return _collect_results(signature, result, args, kwargs)


def _take_numbers(operator: Any, args: Sequence[Any]) -> Any:
    """The overload for a plain number where one stands for the second tensor: boxing makes wrapped numbers Python's."""
    if operator._schema.overload_name != "Tensor" or len(args) < 2 or not is_on_npu(args[0]):
        return operator
    is_number = isinstance(args[1], (int, float, complex))
    return getattr(operator.overloadpacket, "Scalar", operator) if is_number else operator


def _collect_results(signature: _Signature, result: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    if not signature.returned:
        return None
    results = (result,) if len(signature.returned) == 1 else result
    collected = tuple(
        _to_npu(one) if place is None else _pick(place, args, kwargs) for one, place in zip(results, signature.returned)
    )
    return collected[0] if len(collected) == 1 else collected


def _empty(
    size: Sequence[int],
    *,
    dtype: torch.dtype | None = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: Any = None,
    memory_format: Any = None,
) -> torch.Tensor:
    check_index(device)
    return alias_on_npu(torch.empty(size, dtype=dtype, memory_format=memory_format or torch.contiguous_format))


def _empty_strided(
    size: Sequence[int],
    stride: Sequence[int],
    *,
    dtype: torch.dtype | None = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: Any = None,
) -> torch.Tensor:
    check_index(device)
    return alias_on_npu(torch.empty_strided(size, stride, dtype=dtype))


def _copy_from(source: torch.Tensor, target: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    on_host = alias_on_cpu(target) if is_on_npu(target) else target
    on_host.copy_(alias_on_cpu(source) if is_on_npu(source) else source)
    return target


def _copy_from_and_resize(source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    if target.shape != source.shape:
        target.resize_(source.shape)
    return _copy_from(source, target)


def convolve(*args: Any, **kwargs: Any) -> Any:
    """ATen's overrideable convolution, by the CPU's."""
    return run_on_cpu(torch.ops.aten.convolution.default, *args, **kwargs)


def convolve_backward(
    gradient: torch.Tensor,
    inputs: torch.Tensor,
    weight: torch.Tensor,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: int,
    output_mask: Sequence[bool],
) -> Any:
    """ATen's overrideable form has no bias sizes; the CPU kernel wants them when the bias has a gradient."""
    channels = weight.shape[1] * groups if transposed else weight.shape[0]
    bias_sizes = [channels] if output_mask[2] else None
    geometry = (stride, padding, dilation, transposed, output_padding, groups)
    operator = torch.ops.aten.convolution_backward.default
    return run_on_cpu(operator, gradient, inputs, weight, bias_sizes, *geometry, output_mask)


def _to_copy(tensor: torch.Tensor, **options: Any) -> torch.Tensor:
    """ATen's own; a copy that need not be waited for would ask for pinned memory, which this device has none of."""
    options.update(non_blocking=False)
    copied: torch.Tensor = torch.ops.aten._to_copy.default._op_dk(
        DispatchKey.CompositeExplicitAutograd, tensor, **options
    )
    return copied


def _can_take_data(tensor: torch.Tensor, source: torch.Tensor) -> bool:
    """Whether ``tensor.data = source`` keeps the tensor object, as Module.to does so that ties and optimizers hold."""
    return tensor.layout == source.layout == torch.strided


def _bind(operator: Any) -> Any:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        return run_on_cpu(operator, *args, **kwargs)

    return kernel


def register_kernels() -> list[Any]:
    """Register all kernels for the device type; returns the libraries, which must stay alive."""
    anything = open_library("_", "")
    anything.fallback(run_on_cpu, "PrivateUse1")
    kernels = open_library("aten", "PrivateUse1")
    for name in torch._C._dispatch_get_registrations_for_dispatch_key("CPU"):
        if name.startswith("aten::") and name not in _NOT_GENERATED:
            operator = find_operator(name)
            if operator is not None:
                kernels.impl(name[len("aten::") :], _bind(operator))
    kernels.impl("empty.memory_format", _empty)
    kernels.impl("empty_strided", _empty_strided)
    kernels.impl("resize_", _resize)
    kernels.impl("_to_copy", _to_copy)
    kernels.impl("_has_compatible_shallow_copy_type", _can_take_data)
    kernels.impl("_copy_from", _copy_from)
    kernels.impl("_copy_from_and_resize", _copy_from_and_resize)
    kernels.impl("convolution_overrideable", convolve)
    kernels.impl("convolution_backward_overrideable", convolve_backward)
    return [anything, kernels, *_let_lazy_views_through(), *_let_pinning_pass()]


def _let_lazy_views_through() -> list[Any]:
    """Without this, copying a tensor with a pending conjugation calls itself until the stack ends."""
    libraries = []
    for key in ("Conjugate", "Negative"):
        library = open_library("aten", key)
        for name in ("_copy_from", "_copy_from_and_resize"):
            library.impl(name, torch.library.fallthrough_kernel)
        libraries.append(library)
    return libraries


def _let_pinning_pass() -> list[Any]:
    """Without a pinned allocator, ``pin_memory`` of a CPU tensor raises once this device is the accelerator.

    Data loaders pin by default in many scripts; an ordinary copy is what they get. A CUDA build keeps its own.
    """
    if torch.cuda.is_available():
        return []
    library = open_library("aten", "CPU")
    library.impl("_pin_memory", lambda tensor, device=None: tensor.clone())
    library.impl("is_pinned", lambda tensor, device=None: False)
    return [library]
