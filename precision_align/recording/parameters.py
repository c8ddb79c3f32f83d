"""Parameters and buffers at the start of a step, and gradient totals."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional

import torch

from precision_align.core.terms import Phase, Role, Source
from precision_align.recording.tape import Place, Tape


@dataclass(frozen=True)
class Owned:
    """A parameter or buffer under its first-registered name: ``scope`` of the owning module and ``local`` name."""

    scope: str
    local: str
    tensor: torch.Tensor

    @property
    def name(self) -> str:
        """The full name."""
        return f"{self.scope}.{self.local}" if self.scope else self.local

    @classmethod
    def split(cls, name: str, tensor: torch.Tensor) -> Owned:
        """From a full name."""
        scope, _, local = name.rpartition(".")
        return cls(scope, local, tensor)


def owned_parameters(model: torch.nn.Module) -> list[Owned]:
    """All parameters once, by their first names."""
    return [Owned.split(name, parameter) for name, parameter in model.named_parameters()]


def owned_buffers(model: torch.nn.Module) -> list[Owned]:
    """All buffers once, by their first names."""
    return [Owned.split(name, buffer) for name, buffer in model.named_buffers()]


def tied_names(model: torch.nn.Module) -> dict[str, list[str]]:
    """First name -> other names, of parameters that several modules share."""
    first: dict[int, str] = {}
    tied: dict[str, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if first.setdefault(id(parameter), name) != name:
            tied.setdefault(first[id(parameter)], []).append(name)
    return tied


class ParameterRecorder:
    """Records a model's parameters, buffers and gradient totals on the tape."""

    def __init__(self, tape: Tape, model: torch.nn.Module) -> None:
        self._tape, self._model = tape, model

    def record_start(self) -> None:
        """Parameters and buffers as the step finds them."""
        for role, owned in ((Role.PARAMETER, owned_parameters), (Role.BUFFER, owned_buffers)):
            for item in owned(self._model):
                self._record(item, Phase.FORWARD, role, item.tensor, 0)

    def record_totals(self, ordinal: int) -> None:
        """All gradients as they stand in ``.grad``; ``ordinal`` counts the backward passes of this micro-batch."""
        for item in owned_parameters(self._model):
            gradient = gradient_of(item.tensor)
            if gradient is not None:
                self._record(item, Phase.BACKWARD, Role.GRADIENT, gradient, ordinal)

    def _record(self, item: Owned, phase: Phase, role: Role, tensor: torch.Tensor, ordinal: int) -> None:
        if not self._tape.plan.wants_scope(item.scope):
            return
        clock = self._tape.clock
        place = Place(clock.step, clock.batch, item.scope, 0)
        self._tape.record(place, Source.PARAMETERS, phase, role, item.local, tensor, ordinal=ordinal)


def gradient_of(parameter: torch.Tensor) -> Optional[torch.Tensor]:
    """The accumulated gradient, None where there is none."""
    return parameter.grad if parameter.is_leaf else None
