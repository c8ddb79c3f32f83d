"""Parameters and buffers at the start of a step, and gradient totals."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Callable, Optional

import torch

from precision_align.core.terms import Phase, Role, Source
from precision_align.recording.models import Models
from precision_align.recording.tape import Place, Shelf, Tape
from precision_align.storage.drafts import Slot


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


class Inventory:
    """The parameters of a model, listed again only when a module holds others than before."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model
        self._looks: list[int] = []
        self._owned: list[Owned] = []

    def parameters(self) -> Sequence[Owned]:
        """As :func:`owned_parameters`."""
        looks = []
        for module in walk_modules(self._model):
            looks.append(id(module))
            looks.extend(map(id, module._parameters.values()))
        if looks != self._looks:
            self._owned, self._looks = owned_parameters(self._model), looks
        return self._owned


def walk_modules(model: torch.nn.Module) -> Iterator[torch.nn.Module]:
    """Every module once, without its name: a fraction of the cost of ``named_modules``."""
    seen: set[int] = set()
    stack: list[Optional[torch.nn.Module]] = [*model._modules.values()] if isinstance(model, Models) else [model]
    while stack:
        module = stack.pop()
        if module is not None and id(module) not in seen:
            seen.add(id(module))
            stack.extend(module._modules.values())
            yield module


def owned_buffers(model: torch.nn.Module) -> list[Owned]:
    """All buffers once, by their first names."""
    return [Owned.split(name, buffer) for name, buffer in model.named_buffers()]


def list_state(model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """("state:NAME", tensor) of all parameters and buffers: what operations may have been given from them."""
    for item in (*owned_parameters(model), *owned_buffers(model)):
        yield f"state:{item.name}", item.tensor


def tied_names(model: torch.nn.Module) -> dict[str, list[str]]:
    """First name -> other names, of parameters that several modules share."""
    first: dict[int, str] = {}
    tied: dict[str, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if first.setdefault(id(parameter), name) != name:
            tied.setdefault(first[id(parameter)], []).append(name)
    return tied


class Totals:
    """Where the gradient totals of one backward pass of a batch go: the same in every step."""

    def __init__(self, tape: Tape, owned: Sequence[Owned], micro: int, ordinal: int) -> None:
        self.owned = owned
        self.parameters: list[torch.Tensor] = []
        self.shelves: list[Shelf] = []
        self.slots: list[Slot] = []
        for item in owned:
            if tape.plan.wants_scope(item.scope):
                shelf = tape.find_shelf(Place(0, micro, item.scope, 0))
                slot = shelf.find(Source.PARAMETERS, Phase.BACKWARD, Role.GRADIENT, item.local, ordinal, None)
                self.parameters.append(item.tensor)
                self.shelves.append(shelf)
                self.slots.append(slot)


class ParameterRecorder:
    """Records a model's parameters, buffers and gradient totals on the tape.

    ``take_gradients``: records the gradients of parameters in slots; of a session with a lane it is the lane's.
    """

    def __init__(self, tape: Tape, model: torch.nn.Module) -> None:
        self._tape, self._model = tape, model
        self._inventory = Inventory(model)
        self._totals: dict[tuple[int, int], Totals] = {}
        self.take_gradients: Callable[..., None] = self._take_gradients

    def record_start(self, within: str = "") -> list[Owned]:
        """Parameters and buffers as the step finds them; ``within``: of this scope and those below it only.

        Returns those parameters that are not there now, to be given to ``record_gathered`` when they are.
        """
        absent = []
        for role, owned in ((Role.PARAMETER, self._inventory.parameters()), (Role.BUFFER, owned_buffers(self._model))):
            for item in owned:
                if within and not f"{item.scope}.".startswith(f"{within}."):
                    continue
                if is_partitioned(item.tensor):
                    absent.append(item)
                else:
                    self._record(item, Phase.FORWARD, role, item.tensor, 0)
        return absent

    def record_gathered(self, item: Owned) -> None:
        """A parameter that was not there when the step began, unchanged since."""
        self._record(item, Phase.FORWARD, Role.PARAMETER, item.tensor, 0)

    def record_totals(self, ordinal: int) -> None:
        """All gradients as they stand in ``.grad``; ``ordinal`` counts the backward passes of this micro-batch."""
        tape, clock = self._tape, self._tape.clock
        looks, owned = (clock.batch, ordinal), self._inventory.parameters()
        known = self._totals.get(looks)
        if known is None or known.owned is not owned:
            known = self._totals[looks] = Totals(tape, owned, clock.batch, ordinal)
        self.take_gradients(known.parameters, known.shelves, known.slots, clock.step, clock.batch)

    def _take_gradients(
        self, parameters: list[torch.Tensor], shelves: list[Shelf], slots: list[Slot], step: int, micro: int
    ) -> None:
        for parameter, shelf, slot in zip(parameters, shelves, slots):
            gradient = gradient_of(parameter)
            if gradient is not None:
                self._tape.take(shelf, slot, step, micro, gradient)

    def _record(self, item: Owned, phase: Phase, role: Role, tensor: torch.Tensor, ordinal: int) -> None:
        tape, clock = self._tape, self._tape.clock
        if not tape.plan.wants_scope(item.scope):
            return
        place = Place(clock.step, clock.batch, item.scope, 0)
        shelf = tape.find_shelf(place)
        staged = tape.stage(tensor, shelf.tier)
        tape.put(shelf, place, Source.PARAMETERS, phase, role, item.local, ordinal, staged, None)


def is_partitioned(tensor: torch.Tensor) -> bool:
    """Whether the parameter is empty, as DeepSpeed's ZeRO 3 leaves it outside of its module's call."""
    return hasattr(tensor, "ds_tensor") and tensor.numel() == 0


def gradient_of(parameter: torch.Tensor) -> Optional[torch.Tensor]:
    """The accumulated gradient, None where there is none; Megatron accumulates it in a buffer of its own."""
    if not parameter.is_leaf or parameter.grad is not None:
        return parameter.grad if parameter.is_leaf else None
    gradient: Optional[torch.Tensor] = getattr(parameter, "main_grad", None)
    return gradient
