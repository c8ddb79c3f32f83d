"""Gradients of one call: of its outputs, and this call's share of those of its inputs and own parameters.

The graph is only watched, never changed: hooks sit on the autograd nodes that the call itself made. An output's
gradient is what its node is handed (``register_prehook``). An input's share is what the nodes made inside the call
send along their edges to the input, summed (``register_hook``); consumers outside the call do not count. Handing the
module an alias of its input would give the same numbers at first sight, but adds a node, changes the order in which
autograd sums, and the identity of the tensor.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, Optional

import torch

from precision_align.recording.consumers import Targets, find_consumers
from precision_align.recording.nodes import graph_task, sequence_of
from precision_align.recording.staging import is_undisturbed, untouched
from precision_align.recording.tape import Place, Shelf, Tape

LATE = "gradients that arrived after their step had ended were not recorded"


_HOST = torch.device("cpu")


class Tap:
    """One gradient to record: collects its contributions in one backward pass, then records their sum."""

    __slots__ = (
        "_device",
        "_dtype",
        "_num_edges",
        "_passes",
        "_seen",
        "_shelf",
        "_sum",
        "_tape",
        "extra",
        "is_single",
        "path",
        "place",
        "task",
    )

    def __init__(
        self,
        tape: Tape,
        shelf: Shelf,
        place: Place,
        path: str,
        extra: Mapping[str, Any],
        num_edges: int = 1,
        dtype: Optional[torch.dtype] = None,
    ) -> None:
        self.place, self.path, self.extra = place, path, extra
        self._tape, self._shelf, self._num_edges, self._dtype = tape, shelf, num_edges, dtype
        self._sum: Optional[torch.Tensor] = None
        self._device = _HOST
        self.is_single = num_edges == 1
        self._seen = self._passes = 0
        self.task = -1

    def take(self, gradient: Optional[torch.Tensor]) -> None:
        """One contribution of several; None where autograd had nothing to send."""
        self._seen += 1
        if gradient is not None and gradient.is_cpu and is_undisturbed():
            self._sum = gradient.clone() if self._sum is None else self._sum + gradient
        elif gradient is not None:
            sums = self._tape.sums
            with untouched():
                self._sum = sums.start(gradient) if self._sum is None else sums.add(self._sum, gradient)
            self._device = gradient.device
        if self._seen >= self._num_edges:
            self.finish()

    @property
    def partial(self) -> bool:
        """Whether contributions wait for others."""
        return self._seen > 0

    def finish(self) -> None:
        """Record what came, at the latest when the backward pass ends."""
        total, self._sum, self._seen = self._sum, None, 0
        if total is not None:
            if self._device is not _HOST:
                with untouched():
                    total = self._tape.sums.finish(total, self._device)
            self.record(total)

    def record(self, gradient: torch.Tensor) -> None:
        """Copy a whole gradient and hand it over."""
        if self._dtype is not None and self._dtype is not gradient.dtype:
            with untouched():
                gradient = gradient.detach().to(self._dtype)
        place, path, number, tape = self.place, self.path, self._passes, self._tape
        self._passes += 1
        if place.op:
            # the ordinal of a function's record numbers its calls: a further backward pass shows in the path
            path, number = f"{path}~{number}" if number else path, place.number
        slot = self._shelf.gradient(place.source, path, number, self.extra)
        tape.take(self._shelf, slot, place.step, place.micro, gradient)


# Taps, and which of a node's gradients each takes.
Slots = list[tuple[Tap, int]]


@dataclass
class Ledger:
    """All taps of the running step.

    ``generation`` numbers the steps: hooks stay in the user's graph as long as that lives, and those of an older step
    do nothing. ``lane``: the compiled twin, if there is one, whose hooks come back here with what is rare.
    """

    tape: Tape
    generation: int = 0
    lane: Any = None
    _num_taken: int = 0
    _pending: dict[int, Tap] = field(default_factory=dict)
    _tasks: set[int] = field(default_factory=set)
    _handles: list[tuple[Any, Any]] = field(default_factory=list)
    _lock: Any = field(default_factory=threading.RLock)

    @property
    def num_taken(self) -> int:
        """How many hooks ran."""
        return self._num_taken + (0 if self.lane is None else int(self.lane.num_taken))

    def close_step(self) -> None:
        """Record what is still pending and let later gradients of this step go by."""
        with self._lock:
            self._finish(list(self._pending.values()))
            self._tasks.clear()
            self.generation += 1
            if self.lane is not None:
                self.lane.generation = self.generation
            while self._handles:
                self._handles.pop()[1].remove()

    def watch_tensor(self, place: Place, path: str, tensor: torch.Tensor) -> None:
        """Record the gradient that arrives at a tensor, the total over its uses; nothing where it has none.

        A leaf is watched at the node that accumulates its gradient, until the step ends.
        """
        if not tensor.requires_grad:
            return
        tap = Tap(self.tape, self.tape.find_shelf(place), place, path, {})
        if tensor.grad_fn is not None:
            tensor.grad_fn.register_prehook(partial(self._take, self.generation, [(tap, tensor.output_nr)]))
            return
        with torch._C.DisableTorchFunction(), torch.enable_grad():
            node: Any = tensor.view_as(tensor).grad_fn
        accumulator = node.next_functions[0][0]  # lives no longer than somebody holds it
        handle = accumulator.register_prehook(partial(self._take, self.generation, [(tap, 0)]))
        self._handles.append((accumulator, handle))

    def watch_outputs(self, nodes: Mapping[int, tuple[Any, Slots]]) -> None:
        """Hook the nodes whose outputs are the call's outputs."""
        for node, slots in nodes.values():
            node.register_prehook(partial(self._take, self.generation, slots))

    def watch_consumers(self, nodes: Mapping[int, tuple[Any, Slots]]) -> None:
        """Hook the nodes that send gradients to the call's inputs and parameters."""
        for node, slots in nodes.values():
            node.register_hook(partial(self._take, self.generation, slots))

    def _take(self, generation: int, slots: Slots, gradients: Any, grad_outputs: Any = None) -> None:
        """A hook ran; a pre-hook gets the gradients of a node's outputs, a hook those of its inputs first."""
        try:
            self._num_taken += 1
            if generation != self.generation:
                self.note_late()
                return
            with self._lock:
                for tap, index in slots:
                    gradient = gradients[index]
                    if not tap.is_single:
                        self._take_share(tap, gradient)
                    elif gradient is not None:
                        tap.record(gradient)
        except Exception as error:
            self.tape.excuse("a gradient", error)

    def note_late(self) -> None:
        """A hook of an older step ran."""
        self.tape.note(LATE)

    def take_share(self, tap: Tap, gradient: Optional[torch.Tensor]) -> None:
        """One contribution of several, for the compiled twin."""
        with self._lock:
            self._take_share(tap, gradient)

    def cast(self, gradient: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """A gradient in the dtype of the tensor that it is of (autocast casts behind the module)."""
        with untouched():
            return gradient.detach().to(dtype)

    def _take_share(self, tap: Tap, gradient: Optional[torch.Tensor]) -> None:
        task = graph_task()
        if tap.partial and tap.task != task:  # the pass before this one ended without its callback: an exception
            tap.finish()
        tap.task = task
        tap.take(gradient)
        if tap.partial:
            self._pending[id(tap)] = tap
            self._call_back_at_end(task)
        else:
            self._pending.pop(id(tap), None)

    def _call_back_at_end(self, task: int) -> None:
        if task == -1 or task in self._tasks:
            return
        self._tasks.add(task)
        generation = self.generation

        def finish_pass() -> None:
            with self._lock:
                if generation == self.generation:
                    self._tasks.discard(task)
                    self._finish([tap for tap in self._pending.values() if tap.task == task])

        torch.autograd.Variable._execution_engine.queue_callback(finish_pass)

    def _finish(self, taps: Iterable[Tap]) -> None:
        for tap in taps:
            self._pending.pop(id(tap), None)
            try:
                tap.finish()
            except Exception as error:
                self.tape.excuse("a gradient", error)


class Output(NamedTuple):
    """One output tensor of a call: its gradient's path and what is known of it (``same_as``)."""

    path: str
    tensor: torch.Tensor
    extra: Mapping[str, Any]


class _Slots:
    """Taps grouped by the node that feeds them, so that each node gets one hook."""

    def __init__(self) -> None:
        self.nodes: dict[int, tuple[Any, Slots]] = {}

    def add(self, node: Any, index: int, tap: Tap) -> None:
        known = self.nodes.get(id(node))
        if known is None:
            self.nodes[id(node)] = (node, [(tap, index)])
        else:
            known[1].append((tap, index))


def watch_call(
    ledger: Ledger,
    place: Place,
    outputs: Sequence[Output],
    targets: Targets,
    common: Mapping[str, Any],
) -> None:
    """Set the hooks for one finished call; ``common`` goes into all its records' ``extra``.

    The gradient of an output is the total of its uses; ``inside`` says that some of them are this call's own.

    Tensors without a history of their own (leaves) are not outputs to watch.
    """
    roots = [(output, node) for output in outputs if (node := output.tensor.grad_fn) is not None]
    used_inside = _find_used_inside(roots, targets.boundary) if len(roots) > 1 else ()
    tape, shelf = ledger.tape, ledger.tape.find_shelf(place)
    handed_out = _Slots()
    for output, node in roots:
        number = output.tensor.output_nr
        # made before this call: its gradient is a sum over uses that have nothing to do with this call
        older = (id(node), number) in targets.edges or sequence_of(node) < targets.boundary
        extra = {**common, **output.extra} if common or output.extra else {}
        if older:
            extra["shared"] = True
        if output.path in used_inside:
            extra["inside"] = True
        handed_out.add(node, number, Tap(tape, shelf, place, output.path, extra))
    consumers = _Slots()
    shares = {**common, "share": True}
    for path, edges in find_consumers([node for _, node in roots], targets).items():
        extra = {**shares, "also": targets.also[path]} if path in targets.also else shares
        tap = Tap(tape, shelf, place, path, extra, len(edges), targets.dtypes[path])
        for node, index in edges:
            consumers.add(node, index, tap)
    ledger.watch_outputs(handed_out.nodes)
    ledger.watch_consumers(consumers.nodes)


def _find_used_inside(roots: Sequence[tuple[Output, Any]], boundary: int) -> set[str]:
    """Paths of the outputs from which the same call computes other outputs."""
    edges: dict[tuple[int, int], str] = {}
    for output, node in roots:
        edges.setdefault((id(node), output.tensor.output_nr), output.path)
    if len(edges) < 2:
        return set()
    return set(find_consumers([node for _, node in roots], Targets(edges=edges, boundary=boundary)))
