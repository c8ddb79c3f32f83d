"""Which module's own code is running: in the forward pass by hooks, in the backward pass by autograd's numbering.

Every autograd node has the number it got when the forward pass made it. The numbers at which modules are entered and
left are kept, so a node being executed tells its module: no backward hook is needed, nothing is added to the graph, and
models with in-place operators work.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from typing import Any

import torch
from torch.nn.modules import module as module_hooks

from precision_align.core.terms import Phase

# Entries kept of one thread's log; 28 modules make 56 entries a step, so this is more than a thousand steps.
_LONGEST_LOG = 100_000

_next_number: Any = getattr(torch._C._autograd, "_get_sequence_nr", None)
_current_node: Any = getattr(torch._C, "_current_autograd_node", None)


def follows_backward() -> bool:
    """Whether this torch tells the number of the next autograd node and the node being executed."""
    return _next_number is not None and _current_node is not None


def _find_current_node() -> Any:
    return _current_node() if follows_backward() else None


class _Thread(threading.local):
    """``frames``: (module path, autograd node being executed when it was entered), innermost last."""

    def __init__(self) -> None:
        self.frames: list[tuple[str, Any]] = []


class ModuleTracker:
    """Follows the modules of one model, or of any model that is called first while attached to all."""

    def __init__(self) -> None:
        self._names: dict[int, str] = {}
        self._modules: list[torch.nn.Module] = []
        self._handles: list[Any] = []
        self._thread = _Thread()
        self._logs: dict[int, tuple[list[int], list[str]]] = {}

    def __deepcopy__(self, memo: dict[int, Any]) -> ModuleTracker:
        """Copying a followed module copies its hooks; they keep this tracker, which does not know the copy."""
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """Saving a followed module saves its hooks; loaded, they follow nothing."""
        return ModuleTracker, ()

    def attach(self, model: torch.nn.Module) -> None:
        """Follow this model's modules; copies of them are not followed."""
        self._learn_names(model)
        for module in self._modules:
            # Last of the hooks before and first of the hooks after, so that other hooks' operators stay outside.
            self._handles.append(module.register_forward_pre_hook(self._enter))
            self._handles.append(module.register_forward_hook(self._leave, prepend=True, always_call=True))

    def attach_to_all(self) -> None:
        """Follow whatever model is called; its outermost module becomes the root of the names."""
        self._handles.append(module_hooks.register_module_forward_pre_hook(self._enter_any))
        self._handles.append(module_hooks.register_module_forward_hook(self._leave, always_call=True))

    def detach(self) -> None:
        """Remove all hooks and forget all names."""
        for handle in self._handles:
            handle.remove()
        self._handles, self._modules, self._names, self._logs = [], [], {}, {}
        self._thread = _Thread()

    def locate(self) -> tuple[str, Phase] | None:
        """The module whose code runs now, and its phase; None outside any."""
        frames = self._thread.frames
        node = _find_current_node()
        # A module entered while a node runs is a recomputation: its operators are forward ones.
        if frames and (node is None or node is frames[-1][1]):
            return frames[-1][0], Phase.FORWARD
        if node is None:
            return None
        number = getattr(node, "_sequence_nr", lambda: None)()
        scope = None if number is None else self._find(number)
        return None if scope is None else (scope, Phase.BACKWARD)

    def _learn_names(self, model: torch.nn.Module) -> None:
        self._modules = list(model.modules())
        self._names = {id(module): name for name, module in model.named_modules()}

    def _enter_any(self, module: torch.nn.Module, args: Any) -> None:
        if not self._thread.frames and id(module) not in self._names:
            self._learn_names(module)
        self._enter(module, args)

    def _enter(self, module: torch.nn.Module, args: Any) -> None:
        name = self._names.get(id(module))
        if name is not None:
            self._thread.frames.append((name, _find_current_node()))
            self._note(name)

    def _leave(self, module: torch.nn.Module, args: Any, result: Any) -> None:
        name = self._names.get(id(module))
        frames = self._thread.frames
        if name is None or all(name != frame[0] for frame in frames):
            return
        while frames.pop()[0] != name:
            pass  # a module whose forward raised where its hook could not run
        self._note(frames[-1][0] if frames else "")

    def _note(self, scope: str) -> None:
        """From the next autograd node on, this module's code makes them; "" also stands for code outside."""
        if not follows_backward():
            return
        numbers, scopes = self._logs.setdefault(threading.get_ident(), ([], []))
        number = _next_number()
        if numbers and numbers[-1] == number:
            scopes[-1] = scope
            return
        numbers.append(number)
        scopes.append(scope)
        if len(numbers) > _LONGEST_LOG:
            del numbers[: _LONGEST_LOG // 2], scopes[: _LONGEST_LOG // 2]

    def _find(self, number: int) -> str | None:
        """The module that made the node; the numbers count by thread, so this thread's own log comes first."""
        own = threading.get_ident()
        for thread in sorted(self._logs, key=lambda ident: ident != own):
            numbers, scopes = self._logs[thread]
            position = bisect_right(numbers, number) - 1
            # Leaves count as the largest number; past the last entry lies code outside all modules.
            if 0 <= position < len(numbers) - 1:
                return scopes[position]
        return None
