"""Optimizer steps: gradients as ``step()`` saw them, parameters after it, state and hyperparameters.

Records of one step have source ``optimizer``, phase ``step``, the owning module's scope and ``ordinal`` = the
optimizer's index: role gradient and parameter under the local name, role state under "before.NAME.LOCAL" and
"after.NAME.LOCAL" (NAME is the optimizer's own, such as exp_avg). The call itself has scope "optimizer:INDEX"; its
arguments are {"groups": [hyperparameters and "parameters": full names], "state": full name -> scalars}, its output
None. Parameters before the step are those recorded at the start of the training step.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Callable, Optional

import torch

from precision_align.core.errors import UsageError
from precision_align.core.records import Call
from precision_align.core.terms import Pass, Phase, Role, Source
from precision_align.core.trees import Tree, class_name, flatten
from precision_align.recording.forcing import Forcer
from precision_align.recording.masters import Master, find_masters, gradient_to_record
from precision_align.recording.modes import call_modes
from precision_align.recording.origins import caller_line
from precision_align.recording.parameters import Owned, owned_parameters
from precision_align.recording.tape import Place, Tape

_NONE: Tree = {"kind": "scalar", "value": None}


def as_optimizers(optimizer: Any) -> list[Any]:
    """One optimizer, or a list, tuple or dict of them, as a list; None is none. Raises UsageError for anything else."""
    if optimizer is None:
        return []
    if callable(getattr(optimizer, "step", None)):
        return [optimizer]
    several = list(optimizer.values()) if isinstance(optimizer, Mapping) else optimizer
    if not isinstance(several, (list, tuple)) or not all(callable(getattr(item, "step", None)) for item in several):
        raise UsageError(f"optimizer takes what has a step(), or a list or dict of such, not {optimizer!r:.80}")
    return list(several)


def parameter_groups(optimizer: Any) -> list[Mapping[str, Any]]:
    """The torch-like parameter groups, or none."""
    groups = getattr(optimizer, "param_groups", None)
    if not isinstance(groups, (list, tuple)):
        return []
    return [group for group in groups if isinstance(group, Mapping) and "params" in group]


@dataclass
class OptimizerRecorder:
    """Records the steps of one optimizer."""

    tape: Tape
    model: torch.nn.Module
    optimizer: Any
    index: int
    num_calls: int = 0
    forcer: Optional[Forcer] = None
    _enter: int = 0
    _identity: int = -1
    _origin: str = ""
    _found_gradients: bool = False
    _arguments: Tree = field(default_factory=lambda: dict(_NONE))

    @property
    def scope(self) -> str:
        """The scope of its calls."""
        return f"optimizer:{self.index}"

    def start_step(self) -> None:
        """Number its steps from 0 again."""
        self.num_calls = 0

    def record_start(self) -> None:
        """Record the state that the next update begins with."""
        self._record_state(self._owned(), "before")

    def describe(self) -> Mapping[str, Any]:
        """Class, groups, and the state's scalars, as JSON."""
        return {"class": self.kind, **self._describe(self._owned())}

    def before(self, closure: bool = False) -> None:
        """Record what ``step()`` is about to see; a closure makes the gradients only inside of it."""
        self._begin()
        owned = self._owned()
        if self.forcer is not None:
            states = {item.name: dict(self._state_of(item)) for item in owned}
            self.forcer.before_update(owned, states, self.index, self.num_calls)
        self._found_gradients = not closure and self._record_gradients(owned)
        self._record_state(owned, "before")

    def after(self, error: str = "") -> None:
        """Record what it left behind; a closure computes the gradients inside the step, so they come only now."""
        owned = self._owned()
        if not self._found_gradients:
            self._record_gradients(owned)
        for item in owned:
            self._record(item, Role.PARAMETER, item.local, item.tensor)
        self._record_state(owned, "after")
        self._record_call(error)
        self.num_calls += 1

    def record_late(self) -> None:
        """All that can still be seen when ``step`` could not be wrapped and the training step is over."""
        self._begin()
        self._found_gradients = False
        self.after()

    def _begin(self) -> None:
        self._enter, self._identity, self._origin = self.tape.tick(), self.tape.clock.next_identity(), caller_line()
        self._arguments = flatten(self._describe(self._owned()), lambda value: isinstance(value, torch.Tensor))[0]

    @property
    def kind(self) -> str:
        """The optimizer's full class name; another one where what it updates is not the parameters themselves."""
        name = class_name(type(self.optimizer))
        copies = any(isinstance(item, Master) and not item.is_exact for item in self._owned())
        return f"{name} on fp32 copies or pieces" if copies else name

    def describe_groups(self) -> list[Mapping[str, Any]]:
        """Hyperparameters and parameter names of each group, as JSON."""
        groups: list[Mapping[str, Any]] = self._describe(self._owned())["groups"]
        return groups

    def _owned(self) -> list[Owned]:
        everything = owned_parameters(self.model)
        members = {id(parameter) for group in parameter_groups(self.optimizer) for parameter in group["params"]}
        mine = [item for item in everything if id(item.tensor) in members]
        if not mine:
            held = [parameter for group in parameter_groups(self.optimizer) for parameter in group["params"]]
            masters = find_masters(everything, held)
            if masters:
                return list(masters)
        foreign = len(members - {id(item.tensor) for item in everything})
        if foreign:
            self.tape.note(f"{self.scope} holds {foreign} tensors that are not the model's parameters: not recorded")
        return mine or everything

    def _describe(self, owned: Sequence[Owned]) -> dict[str, Any]:
        names = {id(item.held if isinstance(item, Master) else item.tensor): item.name for item in owned}
        groups = []
        for group in parameter_groups(self.optimizer):
            plain = {key: _plain(value) for key, value in group.items() if key != "params"}
            members = [names[id(parameter)] for parameter in group["params"] if id(parameter) in names]
            groups.append({**plain, "parameters": members})
        state = {
            item.name: scalars
            for item in owned
            if (scalars := {name: value for name, value in self._state_of(item) if not isinstance(value, torch.Tensor)})
        }
        return {"groups": groups, "state": state}

    def _state_of(self, item: Owned) -> Iterator[tuple[str, Any]]:
        states = getattr(self.optimizer, "state", None)
        held = item.held if isinstance(item, Master) else item.tensor
        if not isinstance(states, Mapping) or held not in states:
            return
        state = states[held]
        if isinstance(state, Mapping):
            for name, value in state.items():
                if isinstance(item, Master) and isinstance(value, torch.Tensor):
                    value = item.cut(value)
                yield str(name), value

    def _record_gradients(self, owned: Sequence[Owned]) -> bool:
        found = [(item, gradient) for item in owned if (gradient := gradient_to_record(item)) is not None]
        for item, gradient in found:
            self._record(item, Role.GRADIENT, item.local, gradient)
        return bool(found)

    def _record_state(self, owned: Sequence[Owned], when: str) -> None:
        for item in owned:
            for name, value in self._state_of(item):
                if isinstance(value, torch.Tensor):
                    self._record(item, Role.STATE, f"{when}.{name}.{item.local}", value)

    def _record(self, item: Owned, role: Role, path: str, tensor: torch.Tensor) -> None:
        if self.tape.plan.wants_scope(item.scope):
            place = self._place(item.scope)
            self.tape.record(place, Source.OPTIMIZER, Phase.STEP, role, path, tensor, ordinal=self.index)

    def _place(self, scope: str) -> Place:
        return Place(self.tape.clock.step, self.tape.clock.batch, scope, self.num_calls)

    def _record_call(self, error: str) -> None:
        place = self._place(self.scope)
        self.tape.call(
            Call(
                step=place.step,
                micro=place.micro,
                rank=self.tape.rank,
                scope=place.scope,
                call=place.call,
                pass_=Pass.FIRST,
                kind=self.kind,
                identity=self._identity,
                parent=-1,
                enter=self._enter,
                exit=self.tape.tick(),
                leaf=True,
                training=True,
                grad_enabled=torch.is_grad_enabled(),
                arguments=self._arguments,
                output=dict(_NONE),
                modes=call_modes(),
                source=self._origin,
                error=error,
            )
        )


def _plain(value: Any) -> Any:
    """A hyperparameter as JSON can hold it; learning rates may be tensors."""
    if isinstance(value, torch.Tensor):
        return value.tolist() if value.numel() <= 16 and value.device.type != "meta" else f"tensor {tuple(value.shape)}"
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value if value is None or isinstance(value, (bool, int, float, str)) else class_name(type(value))


def takes_closure(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether a call of ``step`` was given a closure that computes the gradients."""
    return any(callable(value) for value in (*args, kwargs.get("closure")))


class StepWrapper:
    """Replaces ``step`` on one optimizer instance until removed.

    The replacement is a bound method, as learning-rate schedulers wrap ``optimizer.step.__func__``.
    """

    def __init__(self, optimizer: Any, before: Callable[[bool], None], after: Callable[[str], None]) -> None:
        self._optimizer, self._before, self._after = optimizer, before, after
        self._previous: Optional[Any] = None
        self._wrapper: Optional[Any] = None
        self._live = False

    def install(self) -> bool:
        """Wrap ``step``; False where the object takes no attributes."""
        original = self._optimizer.step
        self._previous = getattr(self._optimizer, "__dict__", {}).get("step")

        @functools.wraps(original)
        def step(itself: Any, *args: Any, **kwargs: Any) -> Any:
            if not self._live:
                return original(*args, **kwargs)
            self._before(takes_closure(args, kwargs))
            try:
                result = original(*args, **kwargs)
            except BaseException as error:
                self._after(f"{type(error).__name__}: {error}")
                raise
            self._after("")
            return result

        self._wrapper = types.MethodType(step, self._optimizer)
        try:
            self._optimizer.step = self._wrapper
        except (AttributeError, TypeError):
            return False
        self._live = True
        return True

    def remove(self) -> None:
        """Put the old ``step`` back; if somebody wrapped ours meanwhile it stays there and does nothing."""
        self._live = False
        if getattr(self._optimizer, "__dict__", {}).get("step") is not self._wrapper:
            return
        if self._previous is not None:
            self._optimizer.step = self._previous
        else:
            del self._optimizer.step
