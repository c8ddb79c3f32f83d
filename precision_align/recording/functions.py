"""The function-level source: ``torch.nn.functional``, registered custom operators, and units of the user's own.

Operator traces differ between devices wherever one has a fused kernel; the functions that the user's code calls do
not. A function's call is followed as a module's is: inputs before, outputs after, and its share of the gradients.
"""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass
from functools import cache
from typing import Any, Callable, Optional

import torch
from torch.overrides import TorchFunctionMode

from precision_align.core.records import FUNCTION_SCOPE
from precision_align.core.terms import Pass, Phase, Role, Source
from precision_align.core.trees import Tree
from precision_align.recording.calls import WRITTEN, CallRecorder
from precision_align.recording.companions import Companion
from precision_align.recording.consumers import Targets
from precision_align.recording.copies import Staged
from precision_align.recording.gradients import Ledger, Output, watch_call
from precision_align.recording.hooks import is_compiling
from precision_align.recording.leafcalls import end_call
from precision_align.recording.nodes import graph_task
from precision_align.recording.origins import caller_line
from precision_align.recording.parameters import list_state
from precision_align.recording.sightings import Sighting
from precision_align.recording.structures import Leaves, flatten_arguments, prefixed
from precision_align.recording.tape import Place, Tape

# Functions of `torch` and methods of tensors that people write where others call torch.nn.functional or a module.
_ALSO = ("matmul", "bmm", "mm", "addmm", "baddbmm", "einsum", "softmax", "log_softmax", "cumsum", "topk", "sort")


@cache
def _known_functions() -> dict[int, str]:
    """id of a function object -> its name; the objects live as long as torch does."""
    functional = torch.nn.functional
    found = {
        id(value): f"torch.nn.functional.{name}"
        for name, value in vars(functional).items()
        if callable(value) and not name.startswith("_") and _is_function(value)
    }
    for name in _ALSO:
        for owner in (torch, torch.Tensor):
            value = getattr(owner, name, None)
            if value is not None:
                found.setdefault(id(value), f"torch.{name}")
    found.setdefault(id(torch.Tensor.__matmul__), "torch.matmul")
    return found


def _is_function(value: Any) -> bool:
    module = getattr(value, "__module__", "") or ""
    return not isinstance(value, type) and not module.startswith(("typing", "torch.overrides", "torch._jit_internal"))


def name_function(func: Any) -> str:
    """The name under which a function is recorded, "" for those that are not."""
    known = _known_functions().get(id(func), "")
    if known:
        return known
    module = getattr(func, "__module__", "") or ""
    if module.startswith("torch._ops.") and not module.startswith(("torch._ops.aten", "torch._ops.prim")):
        return str(func).removesuffix(".default")
    return ""


@dataclass
class _Running:
    """A function call between its start and its end."""

    place: Place
    identity: int
    parent: int
    enter: int
    line: str
    tree: Tree
    sightings: list[Sighting]
    targets: Targets
    training: bool
    grad_enabled: bool


class FunctionTap(TorchFunctionMode):
    """The function mode; passes everything on until a recorder is bound to it."""

    def __init__(self) -> None:
        super().__init__()
        self.recorder: Optional[FunctionRecorder] = None

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        recorder = self.recorder
        if is_compiling() or recorder is None or not recorder.is_active:  # a compiler traces modes into its graph
            return func(*args, **(kwargs or {}))
        name = name_function(func)
        if not name:
            return func(*args, **(kwargs or {}))
        return recorder.follow(name, func, args, kwargs or {})


class FunctionRecorder(Companion):
    """Follows function calls: those that a :class:`FunctionTap` sees, and registered units."""

    def __init__(
        self,
        tape: Tape,
        calls: CallRecorder,
        ledger: Ledger,
        tap: Optional[FunctionTap] = None,
        model: Optional[torch.nn.Module] = None,
    ) -> None:
        self._tape, self._calls, self._ledger, self._tap, self._model = tape, calls, ledger, tap, model
        self._state: dict[int, tuple[torch.Tensor, str]] = {}
        self._numbers: Counter[tuple[Any, ...]] = Counter()
        self._lock = threading.RLock()
        self._with_gradients = "gradients" in tape.plan.sources

    @property
    def is_active(self) -> bool:
        """Whether calls of now are recorded; inside an optimizer's step they are not: it has records of its own."""
        return self._tape.clock.recording and not self._tape.clock.stepping

    @property
    def is_inside(self) -> bool:
        """Whether a module of this session runs on this thread."""
        return bool(self._calls.open_frames)

    def start(self, cleanup: Any) -> None:
        """Bind the tap."""
        if self._tap is not None:
            self._tap.recorder = self
            cleanup.callback(setattr, self._tap, "recorder", None)

    def start_step(self) -> None:
        """Count from 0 again."""
        with self._lock:
            self._numbers.clear()
            if self._tap is not None and self._model is not None:
                self._state = {id(tensor): (tensor, name) for name, tensor in list_state(self._model)}

    def follow(self, name: str, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Run a function and record it."""
        running = self.begin(name, args, kwargs)
        try:
            result = function(*args, **kwargs)
        except Exception as error:
            self.finish_call(running, None, f"{type(error).__name__}: {error}")
            raise
        self.finish_call(running, result, "")
        return result

    def begin(self, name: str, args: Any, kwargs: Any) -> Any:
        """Before a function's call; what comes back goes to :meth:`finish_call`. Never raises."""
        try:
            return self._begin(name, args, kwargs) if self.is_active else None
        except Exception as error:
            self._tape.excuse(f"the call of {name}", error)
            return None

    def finish_call(self, running: Any, result: Any, error: str) -> None:
        """After it. Never raises."""
        if running is not None:
            self._tape.guard(f"the outputs of {running.place.op}", self._finish, running, result, error)

    def _begin(self, name: str, args: Any, kwargs: Any) -> _Running:
        frames = self._calls.open_frames
        top = frames[-1] if frames else None
        place = self._place(name, top)
        tree, leaves = flatten_arguments({"args": args, "kwargs": kwargs})
        targets = Targets()
        if self._with_gradients and torch.is_grad_enabled():
            for path, tensor in leaves:
                targets.add(prefixed("input", path), tensor)
            targets.set_boundary()
        running = _Running(
            place,
            self._tape.clock.next_identity(),
            -1 if top is None else top.identity,
            self._tape.tick(),
            caller_line(),
            tree,
            [],
            targets,
            True if top is None else top.training,
            torch.is_grad_enabled(),
        )
        for path, tensor in leaves:
            self._take_input(running, path, tensor)
        return running

    def _place(self, name: str, top: Any) -> Place:
        clock = self._tape.clock
        scope, call = ("", 0) if top is None else (top.place.scope, top.place.call)
        pass_ = Pass.FIRST if graph_task() == -1 else Pass.RECOMPUTE
        with self._lock:
            counted = (clock.batch, scope, call, pass_, name)
            number = self._numbers[counted]
            self._numbers[counted] += 1
        return Place(clock.step, clock.batch, scope, call, pass_, Source.FUNCTION, name, number)

    def _name_state(self, tensor: Optional[torch.Tensor]) -> str:
        known = self._state.get(id(tensor))
        return known[1] if known is not None and known[0] is tensor else ""

    def _stage(self, running: _Running, tensor: torch.Tensor) -> Staged:
        """A copy; of the model's buffers always a new one, as kernels write them without counting a version."""
        tier = self._tape.plan.tier(running.place.scope)
        return self._tape.stage(tensor, tier, reuse=not self._name_state(tensor))

    def _take_input(self, running: _Running, path: str, tensor: torch.Tensor) -> None:
        staged = self._stage(running, tensor)
        known = [sighting for sighting in running.sightings if sighting.reference() is tensor]
        if not known:
            running.sightings.append(Sighting.of(tensor, prefixed("input", path), staged))
        self._hand_over(running, Role.INPUT, path, staged, {"same_as": known[0].path} if known else {})

    def _finish(self, running: _Running, result: Any, error: str) -> None:
        tree, leaves = flatten_arguments(result)
        if not error:
            self._take_outputs(running, leaves)
        place = running.place
        producers = {s.path.partition(".")[2]: n for s in running.sightings if (n := self._name_state(s.reference()))}
        end_call(
            self._tape,
            place,
            FUNCTION_SCOPE,
            {"producers": producers} if producers else {},
            identity=running.identity,
            parent=running.parent,
            enter=running.enter,
            training=running.training,
            grad_enabled=running.grad_enabled,
            arguments=running.tree,
            output=tree,
            source=running.line,
            error=error,
        )

    def _take_outputs(self, running: _Running, leaves: Leaves) -> None:
        outputs, returned = [], set()
        for path, tensor in leaves:
            staged = self._stage(running, tensor)
            extra = {}
            for known in running.sightings:
                if known.reference() is tensor:
                    extra = {"same_as" if known.holds(tensor, staged) else "overwrites": known.path}
            self._hand_over(running, Role.OUTPUT, path, staged, extra)
            outputs.append(Output(prefixed("output", path), tensor, extra))
            returned.add(id(tensor))
        self._take_written(running, returned)
        if self._with_gradients and running.grad_enabled and self._tape.plan.wants_scope(running.place.scope):
            watch_call(self._ledger, running.place, outputs, running.targets, {})

    def _take_written(self, running: _Running, returned: set[int]) -> None:
        for known in running.sightings:
            tensor = known.reference()
            if tensor is None or id(tensor) in returned:
                continue
            staged = self._stage(running, tensor)
            if not known.holds(tensor, staged):
                path = prefixed(WRITTEN, known.path.partition(".")[2])
                self._hand_over(running, Role.OUTPUT, path, staged, {"overwrites": known.path})

    def _hand_over(self, running: _Running, role: Role, path: str, staged: Any, extra: dict[str, Any]) -> None:
        if self._tape.plan.wants_scope(running.place.scope):
            extra = {**extra, "function": running.identity}
            self._tape.hand_over(running.place, Source.FUNCTION, Phase.FORWARD, role, path, staged, extra=extra)
