"""The few things of torch's dispatcher that this package builds on, with types."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
from torch.utils._python_dispatch import TorchDispatchMode

# execution(operator, args, kwargs) -> result: one way to carry out an operator.
Execution = Callable[[Any, Sequence[Any], Mapping[str, Any]], Any]

# The stubs of torch list only a part of the keys.
DispatchKey: Any = torch._C.DispatchKey


def run_operator(operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The execution that changes nothing."""
    return operator(*args, **kwargs)


def open_library(namespace: str, key: str) -> Any:
    """A ``torch.library.Library`` for implementations under one dispatch key; it must be kept alive."""
    return cast(Any, torch.library).Library(namespace, "IMPL", key)


def find_operator(qualified: str) -> Any:
    """The OpOverload of a name such as "aten::add.Tensor", None for one that Python cannot reach."""
    packet, _, overload = qualified.split("::", 1)[1].partition(".")
    try:
        return getattr(getattr(torch.ops.aten, packet), overload or "default")
    except (AttributeError, RuntimeError):
        return None


def makes_view(operator: Any) -> bool:
    """Whether a result shares memory with an argument that the operator does not write to."""
    return any(one.alias_info is not None and not one.alias_info.is_write for one in operator._schema.returns)


class ExecutionMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Inside it, every operator that reaches a back end is carried out by ``execution``."""

    def __init__(self, execution: Execution) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._execution = execution

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self._execution(func, args, kwargs or {})
