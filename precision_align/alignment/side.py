"""One dump, arranged for comparison: calls without wrapper shells, and the tensors of each call at hand."""

from __future__ import annotations

import sys
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from precision_align.alignment.names import align_names
from precision_align.core.records import OPTIMIZER_SCOPE, OTHER_SCOPES, Call, TensorRecord
from precision_align.core.terms import Pass, Phase, Role, Source
from precision_align.core.trees import Unbuildable, rebuild
from precision_align.storage.base import Dump

Place = tuple[Phase, Role, str]
Owner = tuple[str, str]  # aligned scope, local name


@dataclass(frozen=True)
class Unit:
    """One training micro-batch of one rank: everything below is numbered within it."""

    rank: int
    step: int
    micro: int


@dataclass(eq=False)
class Node:
    """A first-pass call of a module under its aligned name, linked to its caller and to the calls it made.

    ``number``: 0-based among the calls of ``scope`` in its unit; ``tensors``: its records by phase, role and path.
    """

    call: Call
    scope: str
    unit: Unit
    number: int
    tensors: Mapping[Place, TensorRecord]
    parent: Node | None = None
    children: list[Node] = field(default_factory=list)

    def select(self, phase: Phase, role: Role) -> dict[str, TensorRecord]:
        """Path -> record of one phase and role, in recorded order."""
        return {
            path: record
            for (own_phase, own_role, path), record in self.tensors.items()
            if own_phase is phase and own_role is role
        }

    @property
    def inputs(self) -> dict[str, TensorRecord]:
        return self.select(Phase.FORWARD, Role.INPUT)

    @property
    def outputs(self) -> dict[str, TensorRecord]:
        return self.select(Phase.FORWARD, Role.OUTPUT)

    @property
    def buffers(self) -> dict[str, TensorRecord]:
        return self.select(Phase.FORWARD, Role.BUFFER)

    @property
    def gradients(self) -> dict[str, TensorRecord]:
        return self.select(Phase.BACKWARD, Role.GRADIENT)

    @property
    def fingerprint(self) -> tuple[tuple[str, bytes], ...]:
        """What went in, as hashes: two calls that got the same tensors have the same."""
        return tuple((path, record.digest) for path, record in sorted(self.inputs.items()) if record.is_hashed)

    def is_fed_like(self, other: Node) -> bool:
        """Whether both have one fingerprint, which need not be made for this."""
        ours, theirs = ({path: one for path, one in node.inputs.items() if one.is_hashed} for node in (self, other))
        return ours.keys() == theirs.keys() and all(one.has_hash_of(theirs[path]) for path, one in ours.items())


class Side:
    """One run of a comparison. ``steps``: (rank, step) -> the optimizers' calls.

    ``renames``: aligned scope -> the name that the other run has for it.
    """

    def __init__(self, dump: Dump, renames: Mapping[str, str] | None = None) -> None:
        self.dump = dump
        self.calls: Sequence[Call] = [call for call in dump.calls if not call.scope.startswith(OTHER_SCOPES)]
        self._left: tuple[tuple[int, int], Mapping[Owner, TensorRecord]] = (-1, -1), {}
        self.steps: dict[tuple[int, int], list[Call]] = defaultdict(list)
        for call in dump.calls:
            if call.scope.startswith(OPTIMIZER_SCOPE):
                self.steps[call.rank, call.step].append(call)
        self._by_call: dict[tuple[int, int, int, str, int, Pass], dict[Place, TensorRecord]] = defaultdict(dict)
        self._state: dict[tuple[int, int, Role, Phase], dict[Owner, TensorRecord]] = defaultdict(dict)
        self._owned: dict[tuple[int, int, Role, Phase, str], dict[Owner, TensorRecord]] = defaultdict(dict)
        self._updates: dict[tuple[int, int], list[tuple[Owner, TensorRecord]]] = defaultdict(list)
        owned = [record for record in dump.records if not self._file_call(record)]
        scopes = [*dump.info.modules, *(call.scope for call in self.calls)]
        aligned = align_names(scopes, dump.info.modules, self._find_working())
        new = renames or {}
        self.names = {raw: name if name is None else new.get(name, name) for raw, name in aligned.items()}
        self.renamed = frozenset(raw for raw, name in aligned.items() if name in new)
        for record in owned:
            self._file_state(record)
        for updates in self._updates.values():
            updates.sort(key=lambda update: update[1].order)
        self.nodes = self._link()
        self._by_step: dict[tuple[int, int], list[Node]] = defaultdict(list)
        for node in self.nodes:
            self._by_step[node.unit.rank, node.unit.step].append(node)
        self.units: list[Unit] = list(dict.fromkeys(node.unit for node in self.nodes))
        self.roots: dict[Unit, list[Node]] = defaultdict(list)
        self.by_scope: dict[tuple[Unit, str], list[Node]] = defaultdict(list)
        for node in sorted(self.nodes, key=lambda node: node.call.enter):
            self.by_scope[node.unit, node.scope].append(node)
            if node.parent is None:
                self.roots[node.unit].append(node)
        self.recomputed = sum(call.pass_ == Pass.RECOMPUTE for call in self.calls)

    def _file_call(self, record: TensorRecord) -> bool:
        key = record.key
        if key.source != Source.MODULE:
            return False
        place = (key.phase, key.role, key.path)
        self._by_call[key.rank, key.step, key.micro, key.scope, key.call, key.pass_].setdefault(place, record)
        return True

    def _file_state(self, record: TensorRecord) -> None:
        key = record.key
        if key.source in (Source.PARAMETERS, Source.OPTIMIZER):
            scope = self.names.get(key.scope, key.scope)
            owner = scope if scope is not None else key.scope
            place = (key.rank, key.step, key.role, key.phase)
            self._state[place].setdefault((owner, key.path), record)
            self._owned[(*place, owner)].setdefault((owner, key.path), record)
            if (key.role, key.phase) == (Role.PARAMETER, Phase.STEP):
                self._updates[key.rank, key.step].append(((owner, key.path), record))

    def _find_working(self) -> set[str]:
        """Scopes whose outputs are not just what a module they called returned: no mere wrappers."""
        returned: dict[tuple[int, int, int], list[TensorRecord]] = defaultdict(list)
        outputs: dict[tuple[int, int, int], list[TensorRecord]] = {}
        for call in self.calls:
            tensors = self.select_call(call)
            own = [record for place, record in tensors.items() if place[:2] == (Phase.FORWARD, Role.OUTPUT)]
            outputs[call.rank, call.step, call.identity] = own
            returned[call.rank, call.step, call.parent] += own
        working = set()
        for call in self.calls:
            place = call.rank, call.step, call.identity
            passed_on = (any(one.has_hash_of(other) for other in returned[place]) for one in outputs[place])
            if call.pass_ == Pass.FIRST and call.scope not in working and not all(passed_on):
                working.add(call.scope)
        return working

    def _link(self) -> list[Node]:
        """Nodes in exit order; a wrapper's shell is skipped and its children handed to its caller."""
        calls = [call for call in self.calls if call.pass_ == Pass.FIRST]
        by_identity = {(call.rank, call.step, call.identity): call for call in calls}
        counts: dict[tuple[Unit, str], int] = defaultdict(int)
        found: dict[tuple[int, int, int], Node] = {}
        for call in sorted(calls, key=lambda call: (call.rank, call.enter)):
            scope = self.names[call.scope]
            if scope is None:
                continue
            unit = Unit(call.rank, call.step, call.micro)
            tensors = self.select_call(call)
            node = Node(call, scope, unit, counts[unit, scope], tensors)
            counts[unit, scope] += 1
            parent = self._find_parent(call, by_identity, found)
            if parent is not None:
                node.parent = parent
                parent.children.append(node)
            found[call.rank, call.step, call.identity] = node
        return sorted(found.values(), key=lambda node: (node.unit.rank, node.call.exit))

    def select_call(self, call: Call) -> Mapping[Place, TensorRecord]:
        """The tensors of one call, of either pass."""
        return self._by_call.get((call.rank, call.step, call.micro, call.scope, call.call, call.pass_), {})

    def _find_parent(
        self,
        call: Call,
        by_identity: Mapping[tuple[int, int, int], Call],
        found: Mapping[tuple[int, int, int], Node],
    ) -> Node | None:
        place = (call.rank, call.step, call.parent)
        while place in by_identity:
            if place in found:
                return found[place]
            place = (call.rank, call.step, by_identity[place].parent)
        return None

    def count_updates(self, rank: int, step: int, before: int) -> int:
        """How many parameters optimizers had updated in a step before a sequence number: 0 means as at its start."""
        return bisect_left(self._updates.get((rank, step), ()), before, key=lambda update: update[1].order)

    def parameters_at(self, rank: int, step: int, before: int) -> dict[Owner, TensorRecord]:
        """(aligned owner scope, name) -> parameter as it stood at a sequence number within a step.

        Where several optimizers step in one training step, later calls see what earlier ones left.
        """
        found = dict(self.select_state(rank, step, Role.PARAMETER, Phase.FORWARD))
        found.update(self._updates.get((rank, step), [])[: self.count_updates(rank, step, before)])
        return found

    def parameters_left(self, rank: int, step: int) -> Mapping[Owner, TensorRecord]:
        """(aligned owner scope, name) -> parameter as a step left it. That of one step is kept: many ask for each."""
        if self._left[0] != (rank, step):
            self._left = (rank, step), self.parameters_at(rank, step, sys.maxsize)
        return self._left[1]

    def select_state(self, rank: int, step: int, role: Role, phase: Phase) -> Mapping[Owner, TensorRecord]:
        """(aligned owner scope, name) -> record of parameters, buffers, gradients or optimizer state at a step."""
        return self._state.get((rank, step, role, phase), {})

    def select_owned(self, rank: int, step: int, role: Role, phase: Phase, scope: str) -> Mapping[Owner, TensorRecord]:
        """The part of :meth:`select_state` that belongs to one aligned scope."""
        return self._owned.get((rank, step, role, phase, scope), {})

    def lacks_module(self, rank: int, step: int, scope: str, theirs: Iterable[Owner]) -> bool:
        """Whether a module is not in this program, which has others in its place: parameters of modules that
        ``theirs``, the other run's, are not of. Where it has none, the module was lost, which is a fault.
        """
        ours = {owner for owner, _ in self.select_state(rank, step, Role.PARAMETER, Phase.FORWARD)}
        return scope not in ours and bool(ours - {owner for owner, _ in theirs})

    def select_nodes(self, rank: int, step: int) -> Sequence[Node]:
        """The calls of one step, in exit order."""
        return self._by_step.get((rank, step), ())


def collect_fingerprints(nodes: Iterable[Node]) -> tuple[object, ...]:
    """The fingerprints of several calls as one."""
    return tuple(node.fingerprint for node in nodes)


def read_arguments(call: Call) -> dict[str, Any]:
    """{"groups": [...], "state": {...}} of an optimizer call as plain data; empty where none was recorded."""
    try:
        value = rebuild(call.arguments, {}, lambda name: None, lambda kind, text: text)
    except Unbuildable:
        return {}
    return value if isinstance(value, dict) else {}
