"""The source of collectives: what goes into each and what comes out, through a ``TorchDispatchMode``.

All of them pass the dispatcher: the functions of ``torch.distributed``, functional collectives (DTensor), the buckets
of DistributedDataParallel and FSDP's gathers. So nothing is patched, and no communication hook takes the place of the
one that runs. A collective writes its outputs when it has been waited for: they are taken right before the first
operator that uses them, or at the step's end.
"""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import Any, Optional

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from precision_align.core.records import COLLECTIVE_SCOPE
from precision_align.core.terms import Pass, Phase, Role, Source
from precision_align.recording.calls import CallRecorder
from precision_align.recording.companions import Companion
from precision_align.recording.groups import UNKNOWN, Group, find_group, resolve_name
from precision_align.recording.hooks import is_compiling
from precision_align.recording.leafcalls import end_call
from precision_align.recording.nodes import graph_task
from precision_align.recording.operators import computes
from precision_align.recording.origins import caller_line
from precision_align.recording.storages import storage_of
from precision_align.recording.structures import flatten_arguments
from precision_align.recording.tape import Place, Tape

_NAMESPACES = ("c10d", "_c10d_functional", "c10d_functional")
# An operator's base name without "_" at its end and without "_coalesced" -> the kind of collective.
_KINDS = {
    "allreduce": "all_reduce",
    "all_reduce": "all_reduce",
    "_reduce_scatter_base": "reduce_scatter",
    "reduce_scatter": "reduce_scatter",
    "reduce_scatter_tensor": "reduce_scatter",
    "_allgather_base": "all_gather",
    "allgather": "all_gather",
    "allgather_into_tensor": "all_gather",
    "all_gather_into_tensor": "all_gather",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "gather": "gather",
    "scatter": "scatter",
    "alltoall": "all_to_all",
    "alltoall_base": "all_to_all",
    "all_to_all_single": "all_to_all",
    "send": "send",
    "recv": "recv",
    "recv_any_source": "recv",
}
_OUTPUTS = ("output", "output_tensor", "output_tensors", "outputs", "out")
_INPUTS = ("input", "input_tensor", "input_tensors", "inputs", "self")
_ROOTS = ("root_rank", "dst", "src", "root", "src_rank")
# c10d's numbering of ReduceOp.
_OPERATIONS = ("sum", "avg", "product", "min", "max", "band", "bor", "bxor", "premul_sum")
# Subclasses that run collectives inside: they go first, and what they run is seen then.
_WRAPPERS = ("DTensor", "AsyncCollectiveTensor")
UNFINISHED = "an asynchronous {kind} had not been waited for when its step ended: its outputs were not recorded"
UNKNOWN_OPERATION = "unknown"
NO_OPERATION = "this torch does not tell by which operation a collective reduces: it is not recorded"
NO_GROUP = "this torch does not tell which of several process groups a collective runs in: their ranks are not recorded"


@dataclass
class _Running:
    """A collective whose outputs are still to be taken."""

    place: Place
    phase: Phase
    identity: int
    enter: int
    tree: Any
    description: dict[str, Any]
    outputs: Any
    parent: int
    training: bool
    line: str
    work: Any = None
    landed: bool = False  # waiting for it copied the result into its outputs


class CollectiveTap(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The dispatch mode; passes everything on until a recorder is bound to it."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.recorder: Optional[CollectiveRecorder] = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        recorder = self.recorder
        if recorder is None or not recorder.is_active or is_compiling():
            return func(*args, **(kwargs or {}))
        if any(kind.__name__ in _WRAPPERS for kind in types):
            return NotImplemented
        return recorder.follow(func, args, kwargs or {})


class CollectiveRecorder(Companion):
    """Records what a :class:`CollectiveTap` sees while a step is recorded."""

    def __init__(self, tape: Tape, calls: CallRecorder, tap: CollectiveTap) -> None:
        self._tape, self._calls, self._tap = tape, calls, tap
        self._numbers: Counter[tuple[Any, ...]] = Counter()
        self._sequence: Counter[tuple[Any, ...]] = Counter()
        self._pending: dict[int, list[_Running]] = defaultdict(list)
        self._lock = threading.RLock()

    @property
    def is_active(self) -> bool:
        """Whether collectives of now are recorded."""
        return self._tape.clock.recording

    def start(self, cleanup: Any) -> None:
        """Bind the tap."""
        self._tap.recorder = self
        cleanup.callback(setattr, self._tap, "recorder", None)

    def start_step(self) -> None:
        """Count from 0 again."""
        with self._lock:
            self._numbers.clear()
            self._sequence.clear()
            self._pending.clear()

    def finish_step(self) -> None:
        """Take the outputs that nobody has used."""
        with self._lock:
            for running in list(dict.fromkeys(map(_Same, (one for each in self._pending.values() for one in each)))):
                self._finish(running.held)
            self._pending.clear()

    def follow(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Run an operator; record it where it is a collective, and outputs of earlier ones that it uses."""
        kind = name_kind(func)
        waits = not kind and "wait_tensor" in str(func)
        if self._pending and (kind or reads(func)):
            self._tape.guard("a collective's outputs", self._take_used, args, kwargs, is_copy(func))
        running = self._attempt(func, kind, args, kwargs) if kind else None
        result = func(*args, **kwargs)
        if waits:
            self._tape.guard("a collective's outputs", self._take_used, args, kwargs)
        elif running is not None:
            self._tape.guard(f"a collective ({kind})", self._await, running, result)
        return result

    def _attempt(self, func: Any, kind: str, args: Any, kwargs: Any) -> Optional[_Running]:
        try:
            return self._begin(func, kind, args, kwargs)
        except Exception as error:
            self._tape.excuse(f"a collective ({kind})", error)
            return None

    def _begin(self, func: Any, kind: str, args: Any, kwargs: Any) -> _Running:
        named = name_arguments(func, args, kwargs)
        group = _resolve(named, args, kwargs)
        operation = _name_operation(named)
        if group is UNKNOWN:
            self._tape.note(NO_GROUP)
        if operation == UNKNOWN_OPERATION:
            self._tape.note(NO_OPERATION)
        frames = self._calls.open_frames
        top = frames[-1] if frames else None
        phase = self._find_phase(top is not None)
        inputs, outputs = split_tensors(kind, named)
        root = next((int(named[name]) for name in _ROOTS if isinstance(named.get(name), int)), None)
        paired = (kind, root) if kind in ("send", "recv") else ()  # only two ranks count these
        with self._lock:
            place = self._place(kind, top, phase)
            sequence = self._sequence[group, paired]
            self._sequence[group, paired] += 1
        tree, leaves = flatten_arguments(inputs)
        description = {
            "kind": kind,
            "reduce_op": operation,
            "ranks": list(group.ranks),
            "group": group.name,
            "sequence": sequence,
            "dtype": str(leaves[0][1].dtype).replace("torch.", "") if leaves else "",
            "root": root,
            "splits": [list(named.get(f"{side}_split_sizes") or ()) for side in ("input", "output")],
        }
        clock = self._tape.clock
        running = _Running(
            place,
            phase,
            clock.next_identity(),
            self._tape.tick(),
            tree,
            description,
            outputs,
            -1 if top is None else top.identity,
            True if top is None else top.training,
            caller_line(),
        )
        for path, tensor in leaves:
            self._record(running, Role.INPUT, path, tensor)
        return running

    def _find_phase(self, inside: bool) -> Phase:
        """Outside of forward and backward it belongs to the step: gradients, norms, the loss that is logged."""
        if inside:
            return Phase.FORWARD
        return Phase.STEP if graph_task() == -1 else Phase.BACKWARD

    def _place(self, kind: str, top: Any, phase: Phase) -> Place:
        clock = self._tape.clock
        scope, call, pass_ = ("", 0, Pass.FIRST) if top is None else (top.place.scope, top.place.call, top.place.pass_)
        counted = (clock.batch, scope, call, pass_, phase, kind)
        number = self._numbers[counted]
        self._numbers[counted] += 1
        return Place(clock.step, clock.batch, scope, call, pass_, Source.COLLECTIVE, kind, number)

    def _await(self, running: _Running, result: Any) -> None:
        """Its outputs are written when somebody has waited: until then they are only remembered."""
        returned = flatten_arguments(result)[1]
        if running.outputs is None:  # a functional collective
            running.outputs = [tensor for _, tensor in returned]
        results = result if isinstance(result, tuple) else (result,)
        running.work = next((one for one in results if isinstance(one, torch.ScriptObject)), None)
        storages = {key.cdata for _, tensor in flatten_arguments(running.outputs)[1] if (key := storage_of(tensor))}
        if not storages:
            self._finish(running)
            return
        with self._lock:
            for storage in storages:
                self._pending[storage].append(running)

    def _take_used(self, args: Any, kwargs: Any, copies: bool = False) -> None:
        """Finish those whose outputs are among these arguments; a copy into one may be the waiting itself (gloo)."""
        for index, tensor in enumerate(_list_tensors((*args, *kwargs.values()))):
            key = storage_of(tensor)
            if key is None or key.cdata not in self._pending:
                continue
            with self._lock:
                for running in list(self._pending[key.cdata]):
                    if copies and index == 0 and not running.landed and not _is_done(running.work):
                        running.landed = True
                        continue
                    self._forget(running)
                    self._finish(running, waited=True)

    def _forget(self, running: _Running) -> None:
        for storage in [storage for storage, held in self._pending.items() if running in held]:
            self._pending[storage] = [other for other in self._pending[storage] if other is not running]
            if not self._pending[storage]:
                del self._pending[storage]

    def _finish(self, running: _Running, waited: bool = False) -> None:
        tree, leaves = flatten_arguments(running.outputs)
        if waited or running.landed or not leaves or _is_done(running.work) is not False:
            if any(not tensor.is_cpu for _, tensor in leaves):
                self._tape.forget_copies()  # collectives write without counting as a new version
            for path, tensor in leaves:
                self._record(running, Role.OUTPUT, path, tensor)
        else:
            self._tape.note(UNFINISHED.format(kind=running.place.op))
        end_call(
            self._tape,
            running.place,
            COLLECTIVE_SCOPE,
            {"phase": str(running.phase), "collective": running.description},
            identity=running.identity,
            parent=running.parent,
            enter=running.enter,
            training=running.training,
            grad_enabled=torch.is_grad_enabled(),
            arguments=running.tree,
            output=tree,
            source=running.line,
        )

    def _record(self, running: _Running, role: Role, path: str, tensor: torch.Tensor) -> None:
        place = running.place
        if self._tape.plan.wants_scope(place.scope):
            extra = {"collective": running.identity}
            self._tape.record(place, Source.COLLECTIVE, running.phase, role, path, tensor, extra=extra)


class _Same:
    """A collective by its identity as an object: its tensors cannot be hashed by value."""

    def __init__(self, held: _Running) -> None:
        self.held = held

    def __hash__(self) -> int:
        return id(self.held)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.held is self.held


def name_kind(func: Any) -> str:
    """The kind of collective behind an operator, "" for all others."""
    if getattr(func, "namespace", "") not in _NAMESPACES:
        return ""
    base = str(func._schema.name).rpartition("::")[2]
    return _KINDS.get(base.rstrip("_").replace("_coalesced", ""), "")


def reads(func: Any) -> bool:
    """Whether an operator looks at its arguments' values: views and the wrapping of a result under way do not."""
    return getattr(func, "namespace", "") not in _NAMESPACES and computes(func)


def is_copy(func: Any) -> bool:
    """Whether an operator only overwrites its first argument."""
    return str(getattr(getattr(func, "_schema", None), "name", "")) in ("aten::copy_", "aten::_foreach_copy_")


def name_arguments(func: Any, args: Any, kwargs: Any) -> dict[str, Any]:
    """The arguments of an operator by their names in its schema."""
    names = [argument.name for argument in func._schema.arguments]
    return {**dict(zip(names, args)), **kwargs}


def split_tensors(kind: str, named: dict[str, Any]) -> tuple[Any, Any]:
    """(inputs, outputs) of a collective as its arguments show them; None for outputs that it returns."""
    if "tensors" in named:  # in place
        inputs = [] if kind == "recv" else named["tensors"]
        return inputs, [] if kind == "send" else named["tensors"]
    inputs = next((named[name] for name in _INPUTS if name in named), [])
    outputs = next((named[name] for name in _OUTPUTS if name in named), None)
    return [inputs] if isinstance(inputs, torch.Tensor) else inputs, (
        [outputs] if isinstance(outputs, torch.Tensor) else outputs
    )


def _resolve(named: dict[str, Any], args: Any, kwargs: Any) -> Group:
    name = named.get("group_name")
    if isinstance(name, str):
        return resolve_name(name)
    ranks = named.get("ranks")
    return find_group(args, kwargs if ranks is None else {"ranks": ranks})


def _name_operation(named: dict[str, Any]) -> str:
    """ "sum", "avg", ...; "" where nothing is reduced."""
    value = named.get("reduce_op", named.get("reduceOp", ""))
    if isinstance(value, str):
        return value.lower()
    if isinstance(value, torch.ScriptObject) and not value._has_method("op"):  # type: ignore[attr-defined]
        return UNKNOWN_OPERATION
    is_boxed = isinstance(value, torch.ScriptObject)
    code = int(value._get_method("op")() if is_boxed else getattr(value, "op", value))
    return _OPERATIONS[code] if code < len(_OPERATIONS) else str(code)


def _list_tensors(values: Any) -> list[torch.Tensor]:
    """Tensors among an operator's arguments: themselves or in lists, and in lists of lists."""
    found = []
    for value in values:
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, (list, tuple)):
            found += _list_tensors(value)
    return found


def _is_done(work: Any) -> Optional[bool]:
    """Whether a collective has ended; None where this torch cannot open its handle."""
    unbox = getattr(getattr(torch.distributed, "Work", None), "unbox", None)
    if work is None or unbox is None:
        return None
    return bool(unbox(work).is_completed())
