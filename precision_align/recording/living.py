"""What a script has made without telling anybody: its optimizers, schedulers and gradient scalers."""

from __future__ import annotations

import gc
from typing import Any

import torch

from precision_align.recording.optimizers import parameter_groups


def find_living(kind: type) -> list[Any]:
    """All living objects of a class. By their type: a proxy's ``__class__`` may run code of its own."""
    return [thing for thing in gc.get_objects() if issubclass(type(thing), kind)]


def find_optimizers(model: torch.nn.Module) -> list[torch.optim.Optimizer]:
    """All living torch optimizers that hold parameters of a model, without wrappers around another one of them.

    A wrapper (Accelerate's) is an Optimizer too, but only the one inside tells of its steps for sure.
    """
    mine = {id(parameter) for parameter in model.parameters()}
    found = [
        thing
        for thing in find_living(torch.optim.Optimizer)
        if any(id(held) in mine for group in parameter_groups(thing) for held in group["params"])
    ]
    known = {id(optimizer) for optimizer in found}
    return [optimizer for optimizer in found if not any(id(part) in known for part in vars(optimizer).values())]


def find_schedulers(optimizers: list[Any]) -> list[Any]:
    """All living learning-rate schedulers of these optimizers."""
    mine = {id(optimizer) for optimizer in optimizers}
    kinds: Any = torch.optim.lr_scheduler
    found = {id(thing): thing for thing in find_living(kinds.LRScheduler)}
    # no LRScheduler before torch 2.2
    found.update((id(thing), thing) for thing in find_living(kinds.ReduceLROnPlateau))
    return [thing for thing in found.values() if id(getattr(thing, "optimizer", None)) in mine]


def scaler_classes() -> list[type]:
    """Every class in this process that scales losses as torch's ``GradScaler`` does, with a ``scale`` of its own."""
    found: dict[int, type] = {}
    waiting = _scaler_roots()
    while waiting:
        kind = waiting.pop()
        if "scale" in vars(kind):
            found[id(kind)] = kind
        waiting += kind.__subclasses__()
    return list(found.values())


def _scaler_roots() -> list[Any]:
    roots = [getattr(torch.amp, "GradScaler", None), torch.cuda.amp.GradScaler]
    return [root for root in roots if root is not None]


def find_scalers() -> list[Any]:
    """All living gradient scalers that are switched on."""
    found = {id(thing): thing for kind in _scaler_roots() for thing in find_living(kind)}
    return [scaler for scaler in found.values() if scaler.is_enabled()]
