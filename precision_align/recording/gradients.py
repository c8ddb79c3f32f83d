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
from typing import Any, Callable, Optional

import torch

from precision_align.core.terms import Phase, Role
from precision_align.recording.staging import untouched
from precision_align.recording.tape import Place, Tape

Edge = tuple[Any, int]  # an autograd node and the number of its output

LATE = "gradients that arrived after their step had ended were not recorded"


def graph_task() -> int:
    """The number of the backward pass that runs on this thread, -1 outside."""
    return int(torch._C._current_graph_task_id())


def running_node() -> tuple[int, int]:
    """The backward pass and the number of the autograd node that runs on this thread, (-1, -1) outside.

    Torch versions that do not tell the node give -1 for it.
    """
    current = getattr(torch._C, "_current_autograd_node", None)
    node = None if current is None else current()
    return graph_task(), -1 if node is None else sequence_of(node)


def sequence_position() -> Optional[int]:
    """The number that this thread's next autograd node gets, or None where torch does not tell."""
    peek = getattr(torch.autograd, "_get_sequence_nr", None)
    return None if peek is None else int(peek())


class Tap:
    """One gradient to record: collects its contributions in one backward pass, then records their sum."""

    def __init__(
        self,
        ledger: Ledger,
        place: Place,
        path: str,
        extra: Mapping[str, Any],
        num_edges: int = 1,
        dtype: Optional[torch.dtype] = None,
    ) -> None:
        self.place, self.path, self.extra = place, path, extra
        self._ledger, self._num_edges, self._dtype = ledger, num_edges, dtype
        self._sum: Optional[torch.Tensor] = None
        self._seen, self._passes, self.task = 0, 0, -1

    def take(self, gradient: Optional[torch.Tensor]) -> None:
        """One contribution; None where autograd had nothing to send."""
        self._seen += 1
        if self._num_edges == 1:
            if gradient is not None:
                self._record(gradient)
            self._seen = 0
            return
        if gradient is not None:
            with untouched():
                self._sum = gradient.detach().clone() if self._sum is None else self._sum + gradient.detach()
        if self._seen >= self._num_edges:
            self.finish()

    @property
    def partial(self) -> bool:
        """Whether contributions wait for others."""
        return self._seen > 0

    def finish(self) -> None:
        """Record what came, at the latest when the backward pass ends."""
        if self._sum is not None:
            self._record(self._sum)
        self._sum, self._seen = None, 0

    def _record(self, gradient: torch.Tensor) -> None:
        if self._dtype not in (None, gradient.dtype):
            with untouched():
                gradient = gradient.detach().to(self._dtype)
        # the ordinal of a function's record numbers its calls: a further backward pass shows in the path
        path = f"{self.path}~{self._passes}" if self.place.op and self._passes else self.path
        self._ledger.tape.record(
            self.place,
            self.place.source,
            Phase.BACKWARD,
            Role.GRADIENT,
            path,
            gradient,
            ordinal=self._passes,
            extra=self.extra,
        )
        self._passes += 1


@dataclass
class Ledger:
    """All taps of the running step.

    ``num_taken`` counts the hooks that ran; ``generation`` numbers the steps: hooks stay in the user's graph as long as
    that lives, and those of an older step do nothing.
    """

    tape: Tape
    generation: int = 0
    num_taken: int = 0
    _pending: dict[int, Tap] = field(default_factory=dict)
    _tasks: set[int] = field(default_factory=set)
    _handles: list[tuple[Any, Any]] = field(default_factory=list)
    _lock: Any = field(default_factory=threading.RLock)

    def close_step(self) -> None:
        """Record what is still pending and let later gradients of this step go by."""
        with self._lock:
            self._finish(list(self._pending.values()))
            self._tasks.clear()
            self.generation += 1
            while self._handles:
                self._handles.pop()[1].remove()

    def watch_tensor(self, place: Place, path: str, tensor: torch.Tensor) -> None:
        """Record the gradient that arrives at a tensor, the total over its uses; nothing where it has none.

        A leaf is watched at the node that accumulates its gradient, until the step ends.
        """
        if not tensor.requires_grad:
            return
        tap = Tap(self, place, path, {})
        if tensor.grad_fn is not None:
            tensor.grad_fn.register_prehook(self._make_prehook([(tap, tensor.output_nr)]))
            return
        with torch._C.DisableTorchFunction(), torch.enable_grad():
            node: Any = tensor.view_as(tensor).grad_fn
        accumulator = node.next_functions[0][0]  # lives no longer than somebody holds it
        self._handles.append((accumulator, accumulator.register_prehook(self._make_prehook([(tap, 0)]))))

    def watch_outputs(self, nodes: Mapping[int, tuple[Any, list[tuple[Tap, int]]]]) -> None:
        """Hook the nodes whose outputs are the call's outputs."""
        for node, slots in nodes.values():
            node.register_prehook(self._make_prehook(slots))

    def watch_consumers(self, nodes: Mapping[int, tuple[Any, list[tuple[Tap, int]]]]) -> None:
        """Hook the nodes that send gradients to the call's inputs and parameters."""
        for node, slots in nodes.values():
            node.register_hook(self._make_hook(slots))

    def _make_prehook(self, slots: Sequence[tuple[Tap, int]]) -> Callable[[Any], None]:
        generation = self.generation

        def watch_output(grad_outputs: Any) -> None:
            self._take(generation, slots, grad_outputs)

        return watch_output

    def _make_hook(self, slots: Sequence[tuple[Tap, int]]) -> Callable[[Any, Any], None]:
        generation = self.generation

        def watch_consumer(grad_inputs: Any, grad_outputs: Any) -> None:
            self._take(generation, slots, grad_inputs)

        return watch_consumer

    def _take(self, generation: int, slots: Sequence[tuple[Tap, int]], gradients: Any) -> None:
        try:
            self.num_taken += 1
            if generation != self.generation:
                self.tape.note(LATE)
                return
            with self._lock:
                for tap, index in slots:
                    self._take_one(tap, gradients[index])
        except Exception as error:
            self.tape.excuse("a gradient", error)

    def _take_one(self, tap: Tap, gradient: Optional[torch.Tensor]) -> None:
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


@dataclass
class Targets:
    """Where gradients enter a call's inputs and own parameters, taken before the call (in-place code rebases edges).

    ``edges``: (id of node, output number) -> path, for tensors with a history; ``leaves``: id of tensor -> path;
    ``boundary``: nodes numbered below it were made before the call. ``keep`` holds the nodes so that their ids last;
    ``also``: path -> further paths of the same tensor; ``dtypes`` of the tensors by path.
    """

    edges: dict[tuple[int, int], str] = field(default_factory=dict)
    leaves: dict[int, str] = field(default_factory=dict)
    boundary: int = 0
    keep: dict[int, Any] = field(default_factory=dict)
    also: dict[str, list[str]] = field(default_factory=dict)
    dtypes: dict[str, torch.dtype] = field(default_factory=dict)

    def add(self, path: str, tensor: torch.Tensor) -> None:
        """One more input or parameter; those that need no gradient do not count, nor does the same tensor again."""
        if not tensor.requires_grad:
            return
        node = tensor.grad_fn
        if node is None:
            first = self.leaves.setdefault(id(tensor), path)
        else:
            first = self.edges.setdefault((id(node), tensor.output_nr), path)
            self.keep[id(node)] = node
        self.dtypes.setdefault(first, tensor.dtype)
        if first != path:
            self.also.setdefault(first, []).append(path)

    def set_boundary(self) -> None:
        """Take the boundary, now; without help from torch: the youngest input's number."""
        position = sequence_position()
        if position is None:
            position = max((sequence_of(node) + 1 for node in self.keep.values()), default=0)
        self.boundary = position

    def __bool__(self) -> bool:
        return bool(self.edges or self.leaves)


def sequence_of(node: Any) -> int:
    """The number of an autograd node in its thread's order of creation."""
    return int(node._sequence_nr())


def is_leaf_node(node: Any) -> bool:
    """Whether this node stands for a leaf tensor (``node.variable``); a user's Function can never have this name."""
    return type(node).__name__ == "AccumulateGrad"


def find_consumers(roots: Iterable[Any], targets: Targets) -> dict[str, list[Edge]]:
    """The nodes made inside the call that send gradients to its targets: path -> (node, index of its gradient).

    Walks from the outputs' nodes (``roots``) back to what was made before the call.
    """
    found: dict[str, list[Edge]] = {}
    seen: dict[int, Any] = {}
    stack = [node for node in roots if node is not None]
    while stack:
        node = stack.pop()
        if id(node) in seen or id(node) in targets.keep or is_leaf_node(node):
            continue
        seen[id(node)] = node  # also keeps the wrapper alive, so that its id stays its own
        if sequence_of(node) < targets.boundary:
            continue
        for index, (below, number) in enumerate(node.next_functions):
            path = _path_of(below, number, targets)
            if path is not None:
                found.setdefault(path, []).append((node, index))
            elif below is not None:
                stack.append(below)
    return found


def _path_of(node: Any, number: int, targets: Targets) -> Optional[str]:
    if node is None:
        return None
    if is_leaf_node(node):
        return targets.leaves.get(id(node.variable))
    if node.name() == "ToCopyBackward0":
        # Autocast casts a parameter once and shares the cast between all calls: what this call sends to the cast is
        # its share, what the cast sends on is everybody's.
        below = node.next_functions[0][0]
        if below is not None and is_leaf_node(below) and id(below.variable) in targets.leaves:
            return targets.leaves[id(below.variable)]
    return targets.edges.get((id(node), number))


@dataclass(frozen=True)
class Output:
    """One output tensor of a call: its gradient's path and what is known of it (``same_as``)."""

    path: str
    tensor: torch.Tensor
    extra: Mapping[str, Any]


class _Slots:
    """Taps grouped by the node that feeds them, so that each node gets one hook."""

    def __init__(self) -> None:
        self.nodes: dict[int, tuple[Any, list[tuple[Tap, int]]]] = {}

    def add(self, node: Any, index: int, tap: Tap) -> None:
        self.nodes.setdefault(id(node), (node, []))[1].append((tap, index))


def watch_call(
    ledger: Ledger, place: Place, outputs: Sequence[Output], targets: Targets, common: Mapping[str, Any]
) -> None:
    """Set the hooks for one finished call; ``common`` goes into all its records' ``extra``.

    The gradient of an output is the total of its uses; ``inside`` says that some of them are this call's own.

    Tensors without a history of their own (leaves) are not outputs to watch.
    """
    handed_out = _Slots()
    with_history = [output for output in outputs if output.tensor.grad_fn is not None]
    used_inside = _find_used_inside(with_history, targets.boundary)
    for output in with_history:
        node, number = output.tensor.grad_fn, output.tensor.output_nr
        passed_on = targets.edges.get((id(node), number))
        # made before this call: its gradient is a sum over uses that have nothing to do with this call
        older = passed_on is not None or sequence_of(node) < targets.boundary
        extra = {**common, **output.extra, **({"shared": True} if older else {})}
        if output.path in used_inside:
            extra["inside"] = True
        handed_out.add(node, number, Tap(ledger, place, output.path, extra))
    consumers = _Slots()
    for path, edges in find_consumers([output.tensor.grad_fn for output in with_history], targets).items():
        also = {"also": targets.also[path]} if path in targets.also else {}
        extra = {**common, "share": True, **also}
        tap = Tap(ledger, place, path, extra, len(edges), targets.dtypes[path])
        for node, index in edges:
            consumers.add(node, index, tap)
    ledger.watch_outputs(handed_out.nodes)
    ledger.watch_consumers(consumers.nodes)


def _find_used_inside(outputs: Sequence[Output], boundary: int) -> set[str]:
    """Paths of the outputs from which the same call computes other outputs."""
    edges: dict[tuple[int, int], str] = {}
    for output in outputs:
        edges.setdefault((id(output.tensor.grad_fn), output.tensor.output_nr), output.path)
    if len(edges) < 2:
        return set()
    return set(find_consumers([output.tensor.grad_fn for output in outputs], Targets(edges=edges, boundary=boundary)))
