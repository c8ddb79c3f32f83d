"""Modules that a session never saw called: what that may mean."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from precision_align.recording.environment import has_compiled
from precision_align.recording.parameters import gradient_of

NOTHING_CALLED = (
    "no module call was seen: the model was not called while capturing, or runs compiled "
    "(torch.compile before capture), where hooks do not run; capture the plain model without torch.compile"
)
_SHOWN = 8


def describe_silent(model: torch.nn.Module, silent: Sequence[str]) -> Iterator[str]:
    """Notes on modules that have a ``forward`` but were never called, given by scope."""
    modules = {scope: module for scope, module in model.named_modules() if scope in set(silent)}
    used = [scope for scope in silent if scope in modules and _has_gradient(modules[scope])]
    if silent and has_compiled():
        yield (
            f"{len(silent)} modules were never seen called ({', '.join(map(repr, silent[:3]))}, ...): "
            "they were not used, or run compiled (torch.compile), where hooks do not run"
        )
        return
    if used:
        yield (
            f"never called, yet their parameters have gradients: {_list(modules, used)}; their weights were used "
            "directly or .forward() was called, past all hooks: the source 'operators' shows it"
        )
    unused = [scope for scope in silent if scope in modules and scope not in used and _has_parameters(modules[scope])]
    if unused:
        yield f"never called, though they have parameters: {_list(modules, unused)}"


def _has_gradient(module: torch.nn.Module) -> bool:
    return any(gradient_of(parameter) is not None for parameter in module.parameters(recurse=False))


def _has_parameters(module: torch.nn.Module) -> bool:
    return next(module.parameters(recurse=False), None) is not None


def _list(modules: dict[str, torch.nn.Module], scopes: Sequence[str]) -> str:
    shown = [
        f"{scope!r} ({', '.join(name for name, _ in modules[scope].named_parameters(recurse=False))})"
        for scope in scopes[:_SHOWN]
    ]
    left_out = len(scopes) - _SHOWN
    return ", ".join(shown) + (f" and {left_out} more" if left_out > 0 else "")
