"""Losses: every scalar that a backward pass starts from, seen by wrapping ``torch.autograd.backward``."""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Callable, Optional

import torch

from precision_align.recording.nodes import graph_task


class BackwardListener:
    """What a session wants to hear of backward passes; both methods must not raise."""

    def before_backward(self, roots: Sequence[torch.Tensor]) -> None:
        """A pass starts from these tensors."""

    def after_backward(self, alone: bool) -> None:
        """It ended without an exception; ``alone``: nobody else listens."""


class _Switch:
    """The one wrapper, in place while any session listens; sessions may be nested and end in any order."""

    def __init__(self) -> None:
        self.listeners: list[BackwardListener] = []
        self._original: Optional[Callable[..., Any]] = None
        self._wrapper: Optional[Callable[..., Any]] = None
        self._lock = threading.Lock()

    def add(self, listener: BackwardListener) -> None:
        with self._lock:
            self.listeners.append(listener)
            if len(self.listeners) == 1 and torch.autograd.backward is not self._wrapper:
                self._original = torch.autograd.backward
                self._wrapper = self._wrap(self._original)
                torch.autograd.backward = self._wrapper

    def remove(self, listener: BackwardListener) -> None:
        with self._lock:
            self.listeners.remove(listener)
            # somebody may have wrapped ours meanwhile: then it stays, and does nothing
            if not self.listeners and torch.autograd.backward is self._wrapper and self._original is not None:
                torch.autograd.backward = self._original
                self._wrapper = None

    def _wrap(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            listeners = list(self.listeners) if self._wrapper is backward else []
            if not listeners or graph_task() != -1:  # a pass within a pass is part of it (reentrant checkpoints)
                return original(tensors, *args, **kwargs)
            if inspect.isgenerator(tensors):
                tensors = tuple(tensors)
            roots = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
            for listener in listeners:
                listener.before_backward([root for root in roots if isinstance(root, torch.Tensor)])
            result = original(tensors, *args, **kwargs)
            for listener in listeners:
                listener.after_backward(len(listeners) == 1)
            return result

        return backward


_switch = _Switch()


@contextmanager
def listening(listener: BackwardListener) -> Iterator[None]:
    """Hear of all backward passes of the process while inside."""
    _switch.add(listener)
    try:
        yield
    finally:
        _switch.remove(listener)
