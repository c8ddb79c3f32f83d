"""Several models of one script under one tree of scopes, and the names that they get there."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import FrameType, ModuleType
from typing import Any, Optional

import torch

from precision_align.core.wrappers import WRAPPER_PARTS


class Models(torch.nn.Module):
    """The models that a script calls, as if they were parts of one: the first is the root, "", others have a name.

    Nothing is stored on them. ``named_modules`` lists them without this module itself; torch derives parameters,
    buffers and the rest from it.
    """

    def __init__(self, first: torch.nn.Module) -> None:
        super().__init__()
        self._modules[""] = first  # torch's own method would refuse the name
        self.__dict__["forward"] = first.forward

    @property
    def first(self) -> torch.nn.Module:
        """The first one."""
        found = self._modules[""]
        assert found is not None
        return found

    def add(self, name: str, model: torch.nn.Module) -> str:
        """One more model; returns the scope it has got: the name, with a number where that is taken."""
        taken = {"self", *WRAPPER_PARTS} | {
            scope.partition(".")[0] for scope, _ in self.named_modules(remove_duplicate=False)
        }
        scope = next(found for found in _number(name) if found not in taken)
        self._modules[scope] = model
        return scope

    def get(self, scope: str) -> Optional[torch.nn.Module]:
        """The model of a scope, None where there is none."""
        return self._modules.get(scope)

    def replace(self, scope: str, model: torch.nn.Module) -> None:
        """Another object in the place of one that was added."""
        self._modules[scope] = model

    def named_modules(
        self, memo: Optional[set[torch.nn.Module]] = None, prefix: str = "", remove_duplicate: bool = True
    ) -> Iterator[tuple[str, torch.nn.Module]]:
        """All modules of all models, each under its model's scope."""
        memo = set() if memo is None else memo
        for name, model in self._modules.items():
            scope = ".".join(filter(None, (prefix, name)))
            assert model is not None
            yield from model.named_modules(memo, scope, remove_duplicate)


def _number(name: str) -> Iterator[str]:
    yield name
    number = 2
    while True:
        yield f"{name}_{number}"
        number += 1


def name_model(model: torch.nn.Module) -> str:
    """The variable, or attribute of ``self``, that holds a model where it is called; else its class's name."""
    frame: Optional[FrameType] = sys._getframe(1)
    own, library = __file__.rpartition("/")[0], torch.__file__.rpartition("/")[0]
    while frame is not None and frame.f_code.co_filename.startswith((own, library)):
        frame = frame.f_back
    for variables in () if frame is None else _variables(frame):
        for name, value in variables.items():
            if value is model and name.isidentifier():
                return name
    return type(model).__name__


def _variables(frame: FrameType) -> Iterator[dict[str, Any]]:
    local = dict(frame.f_locals)
    yield local
    for holder in list(local.values()):  # self, a trainer
        own = getattr(holder, "__dict__", {}) if not isinstance(holder, ModuleType) else {}
        yield {**own, **own.get("_modules", {})} if type(own) is dict else {}
    yield dict(frame.f_globals)
