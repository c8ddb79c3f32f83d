"""Run any code in float64: every floating cast and factory below float64 is lifted, except what the operator is for.

``x.float()`` inside a norm is how authors get precision in a low-precision model; in a float64 replay it would throw
precision away. Casts to float8 and quantisation are the operator's function and stay. Code that reads bits of a number
as another type cannot be lifted: it raises :class:`Unliftable`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Optional

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from precision_align.replay.arithmetics import PRODUCTS
from precision_align.replay.replayability import NotReplayable

_LIFTED = {
    torch.float32: torch.float64,
    torch.float16: torch.float64,
    torch.bfloat16: torch.float64,
    torch.complex64: torch.complex128,
    torch.complex32: torch.complex128,
}
LOW_PRECISIONS = frozenset(_LIFTED)
# Libraries whose operators compute in the dtype of their arguments; all others have to show that they do.
_TRUSTED = ("aten", "prims", "prim", "torchvision")
PROBE = 2.0**-40  # a relative change that float64 shows and float32 swallows
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
    """While active, operators compute in float64 whatever their arguments say.

    ``autocast``: the dtype that autocast rounds the operands of products to. That rounding is asked for, not an error
    of the operator, so it is done here too; the products of the rounded operands are float64.
    """

    _paused = 0

    def __init__(self, autocast: Optional[torch.dtype] = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._autocast = autocast

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
        if self._autocast is not None and schema.name in PRODUCTS:
            new_args = [_round(argument, self._autocast) for argument in new_args]
        if func.namespace in _TRUSTED:
            return func(*new_args, **kwargs)
        result = func(*new_args, **kwargs)
        if not schema.is_mutable and not _is_lifted_inside(func, new_args, kwargs, result):
            raise Unliftable(f"the custom operator {schema.name} computes below float64 whatever it is given")
        return result


def _round(value: Any, dtype: torch.dtype) -> Any:
    if isinstance(value, torch.Tensor) and value.dtype == torch.float64:
        return value.to(dtype).to(torch.float64)
    return value


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


def _is_lifted_inside(func: Any, args: list[Any], kwargs: dict[str, Any], result: Any) -> bool:
    """Whether a tiny change of its inputs reaches the results: code that rounds to float32 inside swallows it."""
    again = func(*(_nudge(argument) for argument in args), **{name: _nudge(value) for name, value in kwargs.items()})
    if not any(_is_wide(argument) for argument in [*args, *kwargs.values()]):
        return True
    left, right = ([item for item in _as_list(found) if _is_wide(item)] for found in (result, again))
    changed = sum(int((one != other).sum()) for one, other in zip(left, right))
    nonzero = sum(int((item != 0).sum()) for item in left)
    return changed >= nonzero / 10  # what float32 swallows shows in one value of 65,000


def _is_wide(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype in (torch.float64, torch.complex128)


def _as_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _nudge(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return type(value)(_nudge(item) for item in value)
    if not _is_wide(value):
        return value
    wave = torch.sin(torch.arange(value.numel(), dtype=torch.float64)).reshape(value.shape)
    return value * (1 + PROBE * wave)
