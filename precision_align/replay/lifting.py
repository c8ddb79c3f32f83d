"""Run any code in float64: every floating cast and factory below float64 is lifted, except what the operator is for.

``x.float()`` inside a norm is how authors get precision in a low-precision model; in a float64 replay it would throw
precision away. Casts to float8 and quantisation are the operator's function and stay. Code that reads bits of a number
as another type cannot be lifted: it raises :class:`Unliftable`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from precision_align.replay.replayability import NotReplayable

_LIFTED = {
    torch.float32: torch.float64,
    torch.float16: torch.float64,
    torch.bfloat16: torch.float64,
    torch.complex64: torch.complex128,
    torch.complex32: torch.complex128,
}
# Writing into one of its arguments, or only looking at it: the argument must stay the tensor it is.
_UNTOUCHED = ("aten::set_", "aten::resize_", "aten::detach", "aten::alias")


class Unliftable(NotReplayable):
    """The code reinterprets bits, so that float64 would not mean the same."""


def lift(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor in float64 (complex128); integers, booleans, float8 and quantized ones as they are."""
    if tensor.layout == torch.strided and tensor.dtype in _LIFTED:
        return tensor.to(_LIFTED[tensor.dtype])
    return tensor


class LiftingMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While active, operators compute in float64 whatever their arguments say."""

    _paused = 0

    @classmethod
    @contextmanager
    def paused(cls) -> Iterator[None]:
        """Our own code in between: tensors are loaded as they were stored."""
        cls._paused += 1
        try:
            yield
        finally:
            cls._paused -= 1

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if self._paused:
            return func(*args, **kwargs)
        schema = func._schema
        if schema.name == "aten::view" and schema.overload_name == "dtype":
            if args[0].dtype != args[1]:
                raise Unliftable("the code reinterprets the bits of a number (Tensor.view(dtype))")
            return func(*args, **kwargs)
        new_args, kwargs = _lift_dtypes(schema, list(args), kwargs)
        if not schema.is_mutable and not schema.name.startswith(_UNTOUCHED):
            new_args = [_lift_argument(argument) for argument in new_args]
            kwargs = {name: _lift_argument(value) for name, value in kwargs.items()}
        return func(*new_args, **kwargs)


def _lift_argument(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return lift(value) if value.dtype in _LIFTED else value
    if isinstance(value, (list, tuple)) and any(isinstance(item, torch.Tensor) for item in value):
        return type(value)(_lift_argument(item) for item in value)
    return value


def _lift_dtypes(schema: Any, args: list[Any], kwargs: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """Replace floating ``dtype`` arguments, by position or name."""
    for index, argument in enumerate(schema.arguments):
        if "dtype" not in argument.name:
            continue
        if index < len(args) and not argument.kwarg_only:
            args[index] = _LIFTED.get(args[index], args[index]) if isinstance(args[index], torch.dtype) else args[index]
        elif isinstance(kwargs.get(argument.name), torch.dtype):
            kwargs[argument.name] = _LIFTED.get(kwargs[argument.name], kwargs[argument.name])
    return args, kwargs
