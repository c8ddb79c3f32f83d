"""The least that any recorder by hooks costs: hooks that do nothing, and hooks that copy each tensor once.

One hook before and one after every module's call, one on the autograd node of every output; with copies the outputs,
their gradients and the gradients of all parameters go into memory that is used again. Nothing is named, compared,
hashed or written; gradients of inputs and each call's share of a parameter's are left out.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

_BYTES = 64 << 20  # the tensors of a step lie one behind the other


class _Ring:
    """Memory to copy to, or nothing where nothing is to be copied."""

    def __init__(self, copies: bool) -> None:
        self._copies = copies
        self._memory = np.ones(_BYTES, dtype=np.uint8)  # ones: every page is touched
        self._start = int(self._memory.__array_interface__["data"][0])
        self._used = 0

    def take(self, tensor: torch.Tensor) -> None:
        """Copy a contiguous tensor."""
        if not self._copies:
            return
        size = tensor.nbytes
        self._used = 0 if self._used + size > _BYTES else self._used
        ctypes.memmove(self._start + self._used, tensor.data_ptr(), size)
        self._used += size


@contextmanager
def hooked(model: torch.nn.Module, copies: bool) -> Iterator[None]:
    """The hooks are on the model inside the block."""
    ring = _Ring(copies)

    def before(module: Any, args: Any, kwargs: Any) -> None:
        return None

    def after(module: Any, args: Any, kwargs: Any, output: torch.Tensor) -> None:
        ring.take(output)
        assert output.grad_fn is not None
        output.grad_fn.register_prehook(backward)

    def backward(gradients: Any) -> None:
        ring.take(gradients[0])

    def accumulated(parameter: torch.Tensor) -> None:
        assert parameter.grad is not None
        ring.take(parameter.grad)

    handles: list[Any] = []
    for module in model.modules():
        handles.append(module.register_forward_pre_hook(before, with_kwargs=True))
        handles.append(module.register_forward_hook(after, with_kwargs=True, always_call=True))
    for parameter in model.parameters():
        handles.append(parameter.register_post_accumulate_grad_hook(accumulated))
    yield
    for handle in handles:
        handle.remove()
