"""Modules that a session never saw called, or a whole session without a call: what that may mean."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from precision_align.recording.environment import has_compiled
from precision_align.recording.parameters import gradient_of
from precision_align.recording.plan import Plan, format_steps

EAGER_PASS = "capture with eager=True (--eager), which runs compiled code uncompiled while it records"
_SHOWN = 8


def explain_emptiness(model: torch.nn.Module, plan: Plan, num_steps: int) -> str:
    """Why no call was seen in a session of so many steps, and what to do."""
    if num_steps and plan.steps is not None and not any(plan.wants_step(step) for step in range(num_steps)):
        asked = format_steps(plan.steps)
        return f"none of the steps that were asked for ({asked}) came: the run had steps 0 to {num_steps - 1}"
    if isinstance(model, torch.jit.ScriptModule) or any(
        isinstance(module, torch.jit.ScriptModule) for _, module in model.named_modules()
    ):
        return (
            "the model is compiled TorchScript, which takes no hooks: start the program with PYTORCH_JIT=0 in the "
            "environment, so that it stays Python, or record the source 'operators' with recorder.step()"
        )
    if has_compiled():
        return f"no module call was seen; torch.compile was used, and hooks do not run in compiled code: {EAGER_PASS}"
    return "no module call was seen: neither the model nor a part of it was called while capturing"


def describe_silent(model: torch.nn.Module, silent: Sequence[str]) -> Iterator[str]:
    """Notes on modules that have a ``forward`` but were never called, given by scope."""
    modules = {scope: module for scope, module in model.named_modules() if scope in set(silent)}
    used = [scope for scope in silent if scope in modules and _has_gradient(modules[scope])]
    if silent and has_compiled():
        yield (
            f"never seen called: {', '.join(map(repr, silent[:3]))}{_count_more(len(silent) - 3)}: "
            f"they were not used, or run compiled (torch.compile), where hooks do not run; to see them, {EAGER_PASS}"
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
    return ", ".join(shown) + _count_more(len(scopes) - _SHOWN)


def _count_more(count: int) -> str:
    return f" and {count} more" if count > 0 else ""
