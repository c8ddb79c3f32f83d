"""Module calls: frames, numbering, and what is copied before and after each."""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Optional

import numpy as np
import torch

from precision_align.core.records import Call
from precision_align.core.terms import Pass, Phase, Role, Source
from precision_align.core.trees import Tree, class_name, flatten
from precision_align.recording.copies import Staged
from precision_align.recording.forcing import Forcer
from precision_align.recording.gradients import Ledger, Output, Targets, graph_task, running_node, watch_call
from precision_align.recording.modes import call_modes, enabled_autocast
from precision_align.recording.origins import caller_line, plain_attributes
from precision_align.recording.randomness import describe_generators
from precision_align.recording.recomputation import FirstCall, Recomputations, point_at
from precision_align.recording.staging import untouched
from precision_align.recording.substitution import substitute
from precision_align.recording.tape import Place, Tape

Leaves = Sequence[tuple[str, torch.Tensor]]
# First part of the path of an output record that holds an argument as the call left it.
WRITTEN = "written"


@dataclass(frozen=True)
class Sighting:
    """A tensor object as it was when it passed: to tell whether an output is that very tensor, unchanged."""

    reference: Any
    path: str
    version: int
    staged: Any

    @classmethod
    def of(cls, tensor: torch.Tensor, path: str, staged: Optional[Staged]) -> Sighting:
        """Remember a tensor without keeping it alive."""
        return cls(weakref.ref(tensor), path, version_of(tensor), None if staged is None else lambda: staged)

    @classmethod
    def loosely(cls, tensor: torch.Tensor, path: str, staged: Optional[Staged]) -> Sighting:
        """Remember a tensor without keeping its copy alive either: for the many outputs of a call's children."""
        return cls(weakref.ref(tensor), path, version_of(tensor), None if staged is None else weakref.ref(staged))

    def holds(self, tensor: torch.Tensor, staged: Optional[Staged]) -> bool:
        """Whether this tensor is the remembered one and its values have not changed since."""
        if self.reference() is not tensor or self.version == -1 or self.version != version_of(tensor):
            return False
        if self.staged is None or staged is None:
            return True
        return same_bits(staged, self.staged())  # writes through .data do not count as a new version


def version_of(tensor: torch.Tensor) -> int:
    """How often the tensor was written in place; -1 where torch does not count (inference mode)."""
    return -1 if tensor.is_inference() else int(tensor._version)


def shares_memory(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Whether writing one may change the other."""
    try:
        with untouched():
            return left.untyped_storage().data_ptr() == right.untyped_storage().data_ptr() != 0
    except (RuntimeError, NotImplementedError):  # sparse and wrapped tensors have no storage to ask
        return left is right


def same_bits(left: Staged, right: Optional[Staged]) -> bool:
    """Whether two copies hold the same values, bit for bit; copies without words count as equal if described alike."""
    if right is None or left is right:
        return right is not None
    if left.shape != right.shape or left.dtype != right.dtype:
        return False
    if left.words is None or right.words is None:
        return left.words is right.words
    return bool(np.array_equal(left.words.reshape(-1).view(np.uint8), right.words.reshape(-1).view(np.uint8)))


def prefixed(prefix: str, path: str) -> str:
    """A path one level down; unlike :func:`~precision_align.core.trees.join` for a path that is escaped already."""
    return f"{prefix}.{path}" if path else prefix


@dataclass
class Frame:
    """One running call."""

    module: torch.nn.Module
    place: Place
    identity: int
    parent: int
    enter: int
    arguments: Tree
    origin: str
    raised_before: Optional[BaseException]
    autocast: Mapping[str, str]
    modes: Mapping[str, Any]
    training: bool
    grad_enabled: bool
    targets: Targets = field(default_factory=Targets)
    seen: dict[int, Sighting] = field(default_factory=dict)
    buffers: dict[str, Staged] = field(default_factory=dict)
    wanted: bool = True
    repeats: Optional[FirstCall] = None
    pair: Any = None

    def remember(self, tensor: torch.Tensor, path: str, staged: Optional[Staged]) -> None:
        """A child returned this tensor; what was seen before stays the origin while it still holds."""
        known = self.seen.get(id(tensor))
        if known is None or not known.holds(tensor, staged):
            self.seen[id(tensor)] = Sighting.loosely(tensor, path, staged)


def is_tensor(value: Any) -> bool:
    """What counts as a tensor in an argument structure."""
    return isinstance(value, torch.Tensor)


def flatten_arguments(value: Any) -> tuple[Tree, Leaves]:
    """The tree and tensors of any value; an object whose own code raises is kept as its class name alone."""
    try:
        return flatten(value, is_tensor)
    except Exception:
        return {"kind": "object", "class": class_name(type(value))}, []


def _describe_origin(known: Optional[Sighting], tensor: torch.Tensor, staged: Optional[Staged]) -> dict[str, str]:
    """Where a call's output was seen before: ``same_as`` unchanged, ``overwrites`` an input written in place."""
    if known is None:
        return {}
    if known.holds(tensor, staged):
        return {"same_as": known.path}
    return {"overwrites": known.path} if known.path.startswith("input.") else {}


class CallRecorder:
    """Follows module calls on every thread and records them on the tape."""

    def __init__(self, tape: Tape, ledger: Ledger) -> None:
        self._tape, self._ledger = tape, ledger
        self._local = threading.local()
        self._numbers: dict[tuple[int, str, Pass], int] = {}
        self._recomputations = Recomputations()
        self.called: set[str] = set()
        self._lock = threading.Lock()
        self._num_open = 0
        self.forcer: Optional[Forcer] = None
        self._with_tensors = "modules" in tape.plan.sources
        self._with_gradients = "gradients" in tape.plan.sources

    def is_outermost(self, scope: str) -> bool:
        """Whether a call entered now would be a forward of its own, not part of another (or of a recomputation).

        Worker threads (DataParallel) see an empty stack while the root's call is open on another thread.
        """
        return graph_task() == -1 and not self._frames and (scope == "" or self._num_open == 0)

    def start_step(self) -> None:
        """Number calls from 0 again; frames that a KeyboardInterrupt or an early stop left behind are dropped."""
        with self._lock:
            self._numbers.clear()
            self._recomputations.clear()
            self._num_open = 0
            self._local = threading.local()

    @property
    def open_frames(self) -> Sequence[Frame]:
        """The module calls that run on this thread, the innermost last."""
        return self._frames

    @property
    def _frames(self) -> list[Frame]:
        if not hasattr(self._local, "frames"):
            self._local.frames = {}
        stack: list[Frame] = self._local.frames.setdefault(graph_task(), [])
        return stack

    def enter(self, module: torch.nn.Module, scope: str, args: Any, kwargs: Any) -> None:
        """Before a module's forward."""
        frames = self._frames
        place, identity = self._number(scope, Pass.FIRST if graph_task() == -1 else Pass.RECOMPUTE)
        tree, leaves = flatten_arguments({"args": args, "kwargs": kwargs})
        frame = Frame(
            module=module,
            place=place,
            identity=identity,
            parent=frames[-1].identity if frames else -1,
            enter=self._tape.tick(),
            arguments=tree,
            origin=caller_line(),
            raised_before=sys.exc_info()[1],
            autocast=enabled_autocast(),
            modes={**call_modes(), "rng": describe_generators()},
            training=bool(module.training),
            grad_enabled=torch.is_grad_enabled(),
            wanted=self._tape.plan.wants_scope(scope),
        )
        self._relate(frame, frames[-1] if frames else None, leaves)
        frames.append(frame)
        if place.pass_ is Pass.FIRST:
            with self._lock:
                self._num_open += 1
        if frame.wanted:
            self._take_inputs(frame, leaves)

    def leave(self, module: torch.nn.Module, output: Any) -> Any:
        """After a module's forward, or after it raised; a call whose entry was never seen is ignored.

        Returns what the module is to return instead, None (nearly always) for what it has returned.
        """
        frames = self._frames
        if not any(frame.module is module for frame in frames):
            return None
        while frames[-1].module is not module:
            self._close(frames.pop(), {"kind": "scalar", "value": None}, "its end was not seen")
        frame = frames.pop()
        raised = sys.exc_info()[1]
        if raised is not None and raised is not frame.raised_before:
            self._close(frame, {"kind": "scalar", "value": None}, f"{type(raised).__name__}: {raised}")
            return None
        tree, leaves = flatten_arguments(output)
        forced: dict[int, torch.Tensor] = {}
        if frame.wanted:
            forced = self._take_outputs(frame, frames[-1] if frames else None, leaves)
        self._close(frame, tree, "")
        return substitute(output, forced) if forced else None

    def _relate(self, frame: Frame, above: Optional[Frame], leaves: Leaves) -> None:
        """Remember a call that may be repeated in the backward pass, or find the one that this call repeats."""
        if not self._with_gradients or frame.grad_enabled is (frame.place.pass_ is Pass.FIRST):
            return
        pointers = point_at([tensor for _, tensor in leaves])
        with self._lock:
            if frame.place.pass_ is Pass.FIRST:
                self._recomputations.remember(FirstCall(frame.place, frame.identity, frame.parent, pointers))
            else:
                repeated = above.repeats if above is not None else None
                frame.repeats = self._recomputations.match(frame.place.scope, repeated, pointers, running_node())

    def abandon(self) -> None:
        """Close what is still open on this thread (the session ends inside a call)."""
        for frames in getattr(self._local, "frames", {}).values():
            while frames:
                self._close(frames.pop(), {"kind": "scalar", "value": None}, "its end was not seen")

    def _number(self, scope: str, pass_: Pass) -> tuple[Place, int]:
        clock = self._tape.clock
        with self._lock:
            key = (clock.batch, scope, pass_)
            call = self._numbers.get(key, 0)
            self.called.add(scope)
            self._numbers[key] = call + 1
            return Place(clock.step, clock.batch, scope, call, pass_), clock.next_identity()

    def _take_inputs(self, frame: Frame, leaves: Leaves) -> None:
        if self._with_gradients and frame.grad_enabled:
            for path, tensor in leaves:
                frame.targets.add(prefixed("input", path), tensor)
            for name, parameter in frame.module.named_parameters(recurse=False):
                frame.targets.add(prefixed("parameter", name), parameter)
            frame.targets.set_boundary()
        inputs = {}
        for path, tensor in leaves:
            staged = self._copy(tensor)
            if staged is not None:
                inputs[path] = staged
            known = frame.seen.setdefault(id(tensor), Sighting.of(tensor, prefixed("input", path), staged))
            again = known.path != prefixed("input", path)
            self._hand_over(frame, Role.INPUT, path, staged, {"same_as": known.path} if again else {})
        if self.forcer is not None:
            frame.pair = self.forcer.pair(frame.place, inputs, frame.repeats.place if frame.repeats else None)
        if self._with_tensors:
            for name, buffer in frame.module.named_buffers(recurse=False):
                frame.buffers[name] = self._tape.stage(buffer)
                self._take_buffer(frame, "before", name, frame.buffers[name])

    def _take_outputs(self, frame: Frame, parent: Optional[Frame], leaves: Leaves) -> dict[int, torch.Tensor]:
        """Record the outputs; returns what to put in their place in a forced session: id of a tensor -> another."""
        outputs: list[Output] = []
        forced: dict[int, torch.Tensor] = {}
        returned = {id(tensor) for _, tensor in leaves}
        for path, tensor in leaves:
            staged = self._copy(tensor)
            known = frame.seen.get(id(tensor))
            extra = _describe_origin(known, tensor, staged)
            self._hand_over(frame, Role.OUTPUT, path, staged, extra)
            if self.forcer is not None and frame.pair is not None:
                tensor, staged = self._force(frame, path, tensor, staged, extra, forced)
            local = prefixed("output", path)
            frame.seen[id(tensor)] = Sighting.of(tensor, local, staged)
            if parent is not None:
                parent.remember(tensor, f"{frame.place.scope}@{frame.place.call}:{local}", staged)
            outputs.append(Output(local, tensor, extra))
        self._take_written_inputs(frame, returned)
        self._take_changed_buffers(frame)
        if self._with_gradients and frame.grad_enabled:
            if frame.repeats is None:
                watch_call(self._ledger, frame.place, outputs, frame.targets, {})
            else:
                watch_call(self._ledger, frame.repeats.place, outputs, frame.targets, {"recomputed": True})
        return forced

    def _force(
        self,
        frame: Frame,
        path: str,
        tensor: torch.Tensor,
        staged: Optional[Staged],
        extra: Mapping[str, str],
        forced: dict[int, torch.Tensor],
    ) -> tuple[torch.Tensor, Optional[Staged]]:
        """The tensor that goes on from here, and its copy: the reference's, or the own where it is to stay."""
        if self.forcer is None or "@" in extra.get("same_as", ""):
            return tensor, staged  # a child's output, which was forced there
        if id(tensor) not in forced:
            inputs = [known.reference() for known in frame.seen.values() if known.path.startswith("input")]
            aliases = bool(extra) or any(other is not None and shares_memory(tensor, other) for other in inputs)
            other = self.forcer.force_output(frame.pair, frame.place, path, tensor, staged, aliases)
            if other is None:
                return tensor, staged
            forced[id(tensor)] = other
        return forced[id(tensor)], self._copy(forced[id(tensor)])

    def _take_written_inputs(self, frame: Frame, returned: set[int]) -> None:
        """Inputs that the call wrote into without returning them (a cache): outputs under "written.PATH"."""
        for known in list(frame.seen.values()):
            tensor = known.reference()
            kind, _, local = known.path.partition(".")
            if tensor is None or kind != "input" or id(tensor) in returned:
                continue
            staged = self._copy(tensor)
            if staged is not None and not known.holds(tensor, staged):
                self._hand_over(frame, Role.OUTPUT, prefixed(WRITTEN, local), staged, {"overwrites": known.path})

    def _take_changed_buffers(self, frame: Frame) -> None:
        if not self._with_tensors:
            return
        for name, buffer in frame.module.named_buffers(recurse=False):
            staged = self._tape.stage(buffer)
            if not same_bits(staged, frame.buffers.get(name)):
                self._take_buffer(frame, "after", name, staged)

    def _copy(self, tensor: torch.Tensor) -> Optional[Staged]:
        return self._tape.stage(tensor) if self._with_tensors else None

    def _hand_over(
        self, frame: Frame, role: Role, path: str, staged: Optional[Staged], extra: Optional[Mapping[str, Any]] = None
    ) -> None:
        if staged is not None:
            self._tape.hand_over(frame.place, Source.MODULE, Phase.FORWARD, role, path, staged, extra=extra)

    def _take_buffer(self, frame: Frame, when: str, name: str, staged: Staged) -> None:
        self._tape.hand_over(frame.place, Source.MODULE, Phase.FORWARD, Role.BUFFER, prefixed(when, name), staged)

    def _close(self, frame: Frame, output: Tree, error: str) -> None:
        if frame.place.pass_ is Pass.FIRST:
            with self._lock:
                self._num_open -= 1
        module, place = frame.module, frame.place
        drawn = describe_generators()
        modes = frame.modes if drawn == frame.modes["rng"] else {**frame.modes, "rng_after": drawn}
        self._tape.call(
            Call(
                step=place.step,
                micro=place.micro,
                rank=self._tape.rank,
                scope=place.scope,
                call=place.call,
                pass_=place.pass_,
                kind=class_name(type(module)),
                identity=frame.identity,
                parent=frame.parent,
                enter=frame.enter,
                exit=self._tape.tick(),
                leaf=next(module.children(), None) is None,
                training=frame.training,
                grad_enabled=frame.grad_enabled,
                arguments=frame.arguments,
                output=output,
                attributes=plain_attributes(module),
                autocast=frame.autocast,
                modes=modes,
                source=frame.origin,
                error=error,
            )
        )
