"""The operator-level source: every dispatched operator with its tensors, through a ``TorchDispatchMode``.

Operators of the forward pass belong to the module call that runs; those of a backward pass to the call whose operator
made the autograd node that runs; those of an optimizer's ``step`` to the root, with phase ``step``. Views and
uninitialised memory are calls without tensors of their own: they compute nothing.

A dispatch mode is not free of side effects in torch itself: compiled code runs eagerly inside one, and some composite
operators choose another decomposition. Where the module-level source is enough, leave this one out.
"""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Callable, Optional

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from precision_align.core.records import OPERATOR_SCOPE
from precision_align.core.terms import Pass, Phase, Role, Source
from precision_align.core.trees import Tree
from precision_align.recording.calls import WRITTEN, CallRecorder
from precision_align.recording.companions import Companion
from precision_align.recording.findings import Findings
from precision_align.recording.leafcalls import end_call
from precision_align.recording.nodes import graph_task, running_node, sequence_position
from precision_align.recording.origins import caller_line
from precision_align.recording.parameters import list_state
from precision_align.recording.storages import storage_of
from precision_align.recording.structures import Leaves, flatten_arguments, prefixed
from precision_align.recording.tape import Place, Tape

_UNINITIALISED = ("empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided", "resize_")


@dataclass(frozen=True)
class Spot:
    """Where an operator runs: its module call (``parent`` -1 outside of all), modules around it, the user's line."""

    scope: str
    call: int
    parent: int
    pass_: Pass
    phase: Phase
    training: bool
    stack: tuple[str, ...]
    line: str


@dataclass
class _Running:
    """An operator between its start and its end."""

    func: Any
    place: Place
    spot: Spot
    identity: int
    enter: int
    tree: Tree
    leaves: Leaves
    producers: dict[str, str]
    wanted: Optional[torch.dtype]
    written: list[tuple[str, torch.Tensor]] = field(default_factory=list)


class OperatorTap(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The dispatch mode; passes everything on until a recorder is bound to it."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.recorder: Optional[OperatorRecorder] = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        recorder = self.recorder
        if recorder is None or not recorder.is_active:
            return func(*args, **(kwargs or {}))
        return recorder.follow(func, args, kwargs or {})


class Producers:
    """Which operator wrote a storage last; storages are kept by weak reference, so that no memory is held."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[StorageWeakRef, str]] = {}

    def clear(self) -> None:
        """A new step."""
        self._known.clear()

    def find(self, tensor: torch.Tensor) -> str:
        """ "IDENTITY:PATH" of the writer, "" where none of this step is known."""
        key = storage_of(tensor)
        known = None if key is None else self._known.get(key.cdata)
        return "" if known is None or known[0].expired() else known[1]  # type: ignore[no-untyped-call]

    def remember(self, tensor: torch.Tensor, text: str) -> None:
        """This tensor's storage was written by that operator."""
        key = storage_of(tensor)
        if key is not None:
            self._known[key.cdata] = (key, text)


class OperatorRecorder(Companion):
    """Records what an :class:`OperatorTap` sees while a step is recorded."""

    def __init__(
        self, tape: Tape, calls: CallRecorder, tap: OperatorTap, findings: Findings, model: torch.nn.Module
    ) -> None:
        self._tape, self._calls, self._tap, self._findings, self._model = tape, calls, tap, findings, model
        self._numbers: Counter[tuple[Any, ...]] = Counter()
        self._origins: dict[int, Spot] = {}
        self._producers = Producers()
        self._lock = threading.RLock()

    @property
    def is_active(self) -> bool:
        """Whether operators of now are recorded."""
        return self._tape.clock.recording

    def start(self, cleanup: Any) -> None:
        """Bind the tap."""
        self._tap.recorder = self
        cleanup.callback(setattr, self._tap, "recorder", None)

    def start_step(self) -> None:
        """Count from 0 again."""
        with self._lock:
            self._numbers.clear()
            self._origins.clear()
            self._producers.clear()
            for name, tensor in list_state(self._model):
                self._producers.remember(tensor, name)

    def follow(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Run an operator and record it."""
        running = self._attempt(self._begin, func, args, kwargs)
        try:
            result = func(*args, **kwargs)
        except BaseException as error:
            if running is not None and result_is_ours(error):
                self._attempt(self._finish, running, None, f"{type(error).__name__}: {error}")
            raise
        if running is not None:
            self._attempt(self._finish, running, result, "")
        return result

    def _attempt(self, action: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return action(*arguments)
        except Exception as error:
            self._tape.excuse("an operator", error)
            return None

    def _begin(self, func: Any, args: Any, kwargs: Any) -> Optional[_Running]:
        if getattr(func, "namespace", "") == "prim":
            return None
        spot = self._locate()
        name = str(func)
        place = self._place(spot, name)
        tree, leaves = flatten_arguments({"args": args, "kwargs": kwargs})
        producers = {path: text for path, tensor in leaves if (text := self._producers.find(tensor))}
        clock = self._tape.clock
        wanted = kwargs.get("dtype")
        running = _Running(func, place, spot, clock.next_identity(), self._tape.tick(), tree, leaves, producers, wanted)
        if computes(func):
            for path, tensor in leaves:
                self._record(running, Role.INPUT, path, tensor)
            running.written = find_written(func, args, kwargs)
        return running

    def _locate(self) -> Spot:
        frames = self._calls.open_frames
        clock = self._tape.clock
        if frames:
            top = frames[-1]
            stack = tuple(frame.place.scope for frame in frames)
            return Spot(
                top.place.scope,
                top.place.call,
                top.identity,
                top.place.pass_,
                Phase.FORWARD,
                top.training,
                stack,
                caller_line(),
            )
        if graph_task() != -1:
            origin = self._origins.get(running_node()[1])
            if origin is not None:
                return Spot(**{**vars(origin), "phase": Phase.BACKWARD})
            return Spot("", 0, -1, Pass.FIRST, Phase.BACKWARD, True, (), caller_line())
        return Spot("", 0, -1, Pass.FIRST, Phase.STEP if clock.stepping else Phase.FORWARD, True, (), caller_line())

    def _place(self, spot: Spot, name: str) -> Place:
        clock = self._tape.clock
        with self._lock:
            counted = (clock.batch, spot.scope, spot.call, spot.pass_, spot.phase, name)
            number = self._numbers[counted]
            self._numbers[counted] += 1
        return Place(clock.step, clock.batch, spot.scope, spot.call, spot.pass_, Source.ATEN, name, number)

    def _finish(self, running: _Running, result: Any, error: str) -> None:
        tree, leaves = flatten_arguments(result)
        self._remember_node(running.spot)
        if running.spot.parent != -1:
            place, line = running.place, running.spot.line
            self._findings.hops.look(place.op, computes(running.func), running.leaves, leaves, line)
        if computes(running.func):
            self._take_outputs(running, leaves)
        spot, place = running.spot, running.place
        modes = {
            "phase": str(spot.phase),
            "stack": list(spot.stack),
            "computes": computes(running.func),
            "producers": running.producers,
        }
        end_call(
            self._tape,
            place,
            OPERATOR_SCOPE,
            modes,
            identity=running.identity,
            parent=spot.parent,
            enter=running.enter,
            training=spot.training,
            grad_enabled=torch.is_grad_enabled(),
            arguments=running.tree,
            output=tree,
            source=spot.line,
            error=error,
        )

    def _remember_node(self, spot: Spot) -> None:
        """The autograd node of this operator has the number before the next one's."""
        position = sequence_position()
        if spot.phase is Phase.FORWARD and position:
            self._origins.setdefault(position - 1, spot)

    def _take_outputs(self, running: _Running, leaves: Leaves) -> None:
        returned = set()
        if running.written:
            self._tape.forget_written(tensor for _, tensor in running.written)
        for path, tensor in leaves:
            returned.add(id(tensor))
            self._record(running, Role.OUTPUT, path, tensor)
            self._producers.remember(tensor, f"{running.identity}:{path}")
        for path, tensor in running.written:
            if id(tensor) not in returned:
                self._record(running, Role.OUTPUT, prefixed(WRITTEN, path), tensor)
                self._producers.remember(tensor, f"{running.identity}:{prefixed(WRITTEN, path)}")
        self._findings.look_at_operator(running.func, running.leaves, leaves, running.spot.line, running.wanted)

    def _record(self, running: _Running, role: Role, path: str, tensor: torch.Tensor) -> None:
        place = running.place
        if self._tape.plan.wants_scope(place.scope):
            extra = {"operator": running.identity}
            self._tape.record(place, Source.ATEN, running.spot.phase, role, path, tensor, extra=extra)


def result_is_ours(error: BaseException) -> bool:
    """Whether an error is an operator's own and not a signal to end the program."""
    return isinstance(error, Exception)


@cache
def computes(func: Any) -> bool:
    """Whether an operator's outputs have values of its making.

    Views only show their argument in another way, and the memory that ``empty`` gives holds whatever lay there.
    """
    schema = getattr(func, "_schema", None)
    aliases = [returned.alias_info for returned in getattr(schema, "returns", ())]
    if any(alias is not None and not alias.is_write for alias in aliases):
        return False
    return str(getattr(schema, "name", "")).rpartition("::")[2] not in _UNINITIALISED


def find_written(func: Any, args: Any, kwargs: Any) -> list[tuple[str, torch.Tensor]]:
    """Arguments that the operator's schema says it writes into, by their path: "args.0", "kwargs.out"."""
    found = []
    for index, argument in enumerate(getattr(getattr(func, "_schema", None), "arguments", ())):
        if argument.alias_info is None or not argument.alias_info.is_write:
            continue
        by_name = index >= len(args)
        value = kwargs.get(argument.name) if by_name else args[index]
        path = f"kwargs.{argument.name}" if by_name else f"args.{index}"
        found += [(prefixed(path, inner), tensor) for inner, tensor in flatten_arguments(value)[1]]
    return found
