"""Records of operators and functions: paired within their module calls, and compared raw.

They see what no module call shows: code inline in a forward, modules called past their hooks, losses. Where modules
were recorded, operations only name the place inside a diverging call and speak for modules that were never called:
module records have stronger evidence. Without module records they are all there is, and the verdict rests on them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from precision_align.alignment.pairing import Alignment, fill_gaps, match_in_order
from precision_align.alignment.side import Side
from precision_align.comparison.raw import Gap, Pair, RawComparer
from precision_align.comparison.rows import Blame, Traced, make_row, row_from_raw
from precision_align.core.records import FUNCTION_SCOPE, OPERATOR_SCOPE, Call, TensorRecord
from precision_align.core.results import Divergence, Limit, RecordResult
from precision_align.core.terms import Pass, Phase, Role, Site, Source, Status
from precision_align.core.trees import scalars

_PREFIXES = {Source.ATEN: OPERATOR_SCOPE, Source.FUNCTION: FUNCTION_SCOPE}
# How two numbers may differ that were computed from tensors which differ by rounding.
_SLACK = 1e-3


class Place(NamedTuple):
    """The module call that operations ran in; ``scope`` raw, "" and call 0 also outside of all calls."""

    rank: int
    step: int
    micro: int
    source: Source
    scope: str
    call: int
    phase: Phase


@dataclass(eq=False)
class Operation:
    """One call of an operator or a function with its records; ``call`` is None in dumps that keep none."""

    place: Place
    name: str
    number: int
    call: Call | None = None
    tensors: list[TensorRecord] = field(default_factory=list)

    def select(self, role: Role) -> dict[str, TensorRecord]:
        """Path -> record, of one role."""
        return {record.key.path: record for record in self.tensors if record.key.role == role}

    @property
    def order(self) -> int:
        """When it began."""
        return self.call.enter if self.call is not None else min(record.order for record in self.tensors)

    @property
    def line(self) -> str:
        """The user's line."""
        return "" if self.call is None else self.call.source

    @property
    def uses(self) -> tuple[str, ...]:
        """Scopes of the modules whose own parameters or buffers it was given."""
        known = self.call.modes.get("producers", {}) if self.call is not None else {}
        named = [text.partition(":")[2] for text in known.values() if text.startswith("state:")]
        return tuple(dict.fromkeys(name.rpartition(".")[0] for name in named))


def list_operations(side: Side) -> dict[Place, list[Operation]]:
    """The operations of a run that have records, by the module call that they ran in, in order."""
    calls = {
        _identify(call): call for call in side.dump.calls if call.scope.startswith((OPERATOR_SCOPE, FUNCTION_SCOPE))
    }
    found: dict[tuple[Place, str, int], Operation] = {}
    for record in side.dump.records:
        key = record.key
        if key.source not in _PREFIXES or key.pass_ != Pass.FIRST:
            continue
        # a function's gradients belong to its forward call
        phase = key.phase if key.source == Source.ATEN else Phase.FORWARD
        place = Place(key.rank, key.step, key.micro, key.source, key.scope, key.call, phase)
        identity = (place, key.op, key.ordinal)
        if identity not in found:
            found[identity] = Operation(place, key.op, key.ordinal, calls.get(identity))
        found[identity].tensors.append(record)
    by_place: dict[Place, list[Operation]] = defaultdict(list)
    for operation in sorted(found.values(), key=lambda one: one.order):
        by_place[operation.place].append(operation)
    return dict(by_place)


def _identify(call: Call) -> tuple[Place, str, int]:
    is_operator = call.scope.startswith(OPERATOR_SCOPE)
    scope = call.scope[len(OPERATOR_SCOPE if is_operator else FUNCTION_SCOPE) :]
    phase = Phase(call.modes.get("phase", "forward")) if is_operator else Phase.FORWARD
    source = Source.ATEN if is_operator else Source.FUNCTION
    module_call = int(call.modes.get("module_call", 0))
    return Place(call.rank, call.step, call.micro, source, scope, module_call, phase), call.kind, call.call


class OperationJudge:
    """Pairs the operations of both runs and judges them by raw evidence."""

    def __init__(self, alignment: Alignment, raw: RawComparer) -> None:
        self._alignment, self._raw = alignment, raw
        self._ours = list_operations(alignment.candidate)
        self._theirs = {} if alignment.reference is None else list_operations(alignment.reference)
        self._nodes = {
            (node.unit.rank, node.unit.step, node.unit.micro, node.call.scope, node.call.call): node
            for node in alignment.candidate.nodes
        }
        self._pairs: dict[Operation, Operation | None] | None = None
        self._by_identity = {
            (place.rank, place.step, str(one.call.identity)): one
            for place, operations in self._ours.items()
            for one in operations
            if one.call is not None
        }

    @property
    def is_alone(self) -> bool:
        """Whether one of the runs has no outputs of modules, and both have operations."""
        sides = (self._alignment.candidate, self._alignment.reference)
        bare = any(side is None or not any(node.outputs for node in side.nodes) for side in sides)
        return bare and bool(self._ours and self._theirs)

    def judge_all(self) -> list[RecordResult]:
        """A row for every operation's results, and one where something else comes in that no operation made."""
        return [*self._judge_between(), *(row for operation in self._list() for row in self._judge(operation))]

    def _judge_between(self) -> Iterator[RecordResult]:
        """What goes into an operation differs though all that was seen before agrees: the code between makes it.

        That code is an operation which the reference lacks, as far as is known, or none that was recorded.
        """
        events: dict[tuple[int, int], list[tuple[int, Operation, Pair]]] = defaultdict(list)
        for operation, partner in self._find_pairs().items():
            for role in (Role.INPUT, Role.OUTPUT, Role.GRADIENT):
                for pair in self._pair(operation, partner, role):
                    events[operation.place.rank, operation.place.step].append((pair[0].order, operation, pair))
        for members in events.values():
            for _, operation, pair in sorted(members, key=lambda event: event[0]):
                gap = self._raw.gap(*pair)
                if gap.known and not gap.close:
                    if _is_source(pair[0]):
                        yield self._blame_between(operation, pair, gap)
                    break

    def _blame_between(self, operation: Operation, pair: Pair, gap: Gap) -> RecordResult:
        record = pair[0]
        known = {} if operation.call is None else operation.call.modes.get("producers", {})
        text = known.get(record.key.path, "")
        blame = self._blame(operation, record.key.phase, None)
        note = "is given something else, although all that was recorded before agrees: the code before it makes it"
        maker = self._by_identity.get((operation.place.rank, operation.place.step, text.partition(":")[0]))
        if maker is not None:
            blame = self._blame(maker, record.key.phase, None)
            note = f"the reference has no such operation here, and {operation.name} gets something else"
        elif text.startswith("state:"):
            blame = replace(blame, site=Site.PARAMETERS)
        elif operation.place.source == Source.ATEN and record.key.role == Role.INPUT:
            blame = replace(blame, site=Site.INPUTS)
        limit = Limit(gap.metric, gap.limit, f"raw limit of {record.dtype}")
        return make_row(record, blame, Status.FAIL, "raw", metrics=gap.metrics, limit=limit, note=note)

    def judge_uncalled(self, rows: Sequence[RecordResult]) -> list[RecordResult]:
        """Rows for operations that used the parameters of a module that was never called.

        Where the call that they ran in was judged and did not fail, they do not fail either: its evidence is stronger.
        """
        called = {node.scope for node in self._alignment.candidate.nodes}
        failing = {(row.rank, row.step, row.scope, row.phase) for row in rows if row.status in _SUSPECT}
        found = []
        for operation in self._list():
            for raw_scope in operation.uses:
                scope = self._alignment.candidate.names.get(raw_scope, raw_scope) or raw_scope
                if scope in called or not raw_scope:
                    continue
                place = operation.place
                for row in self._judge(operation, scope):
                    around = (place.rank, place.step, self._name_scope(operation), row.phase)
                    weak = row.status == Status.FAIL and around not in failing
                    found.append(replace(row, status=Status.WARN) if weak else row)
        return found

    def describe(self) -> list[str]:
        """What was compared of them, as notes."""
        pairs = self._find_pairs()
        if not pairs:
            return []
        paired = sum(other is not None for other in pairs.values())
        renamed = {(o.name, p.name) for o, p in pairs.items() if p is not None and p.name != o.name}
        notes = [f"{paired} of {len(pairs)} operator and function calls have a partner in the reference"]
        notes += [
            f"the candidate runs {ours} where the reference runs {theirs}" for ours, theirs in sorted(renamed)[:5]
        ]
        return notes

    def name(self, first: Divergence) -> Divergence:
        """The divergence with the first operation inside its call that computes something else, if one does."""
        if first.site not in (Site.MODULE, Site.INLINE):
            return first
        for operation in self._list():
            if not self._is_inside(operation, first):
                continue
            failed = [row for row in self._judge(operation) if row.status == Status.FAIL and row.phase == first.phase]
            if failed:
                return _name_inside(first, operation, failed[0])
        return first

    def _is_inside(self, operation: Operation, first: Divergence) -> bool:
        place = operation.place
        if (place.rank, place.step) != (first.rank, first.step):
            return False
        node = self._nodes.get((place.rank, place.step, place.micro, place.scope, place.call))
        return node is not None and (node.scope, node.number) == (first.scope, first.call)

    def _list(self) -> Iterator[Operation]:
        yield from sorted(self._find_pairs(), key=lambda one: (one.place.step, one.place.rank, one.order))

    def _find_pairs(self) -> dict[Operation, Operation | None]:
        if self._pairs is None:
            self._pairs = {}
            for place, operations in self._ours.items():
                others = self._theirs.get(self._find_partner(place), [])
                self._pairs.update(pair_operations(operations, others))
        return self._pairs

    def _find_partner(self, place: Place) -> Place:
        node = self._nodes.get((place.rank, place.step, place.micro, place.scope, place.call))
        partner = None if node is None else self._alignment.pairs.get(node)
        if partner is not None:
            unit, call = partner.unit, partner.call
            return Place(unit.rank, unit.step, unit.micro, place.source, call.scope, call.call, place.phase)
        for unit, other in self._alignment.units.items():
            if (unit.rank, unit.step, unit.micro) == (place.rank, place.step, place.micro):
                return place._replace(rank=other.rank, step=other.step, micro=other.micro)
        return place

    def _name_scope(self, operation: Operation) -> str:
        raw = operation.place.scope
        return self._alignment.candidate.names.get(raw, raw) or ""

    def trace(self) -> Iterator[Traced]:
        """Each result of an operation, and everything that it is computed from."""
        for operation in self._list():
            for targets, sources, phase in self._split(operation):
                blame = self._blame(operation, phase, None)
                yield from ((blame, pair, sources) for pair in targets)

    def _split(self, operation: Operation) -> Iterator[tuple[list[Pair], list[Pair], Phase]]:
        """(results, what they are computed from, phase) of the forward and of the backward pass."""
        partner = self._find_pairs()[operation]
        inputs = self._pair(operation, partner, Role.INPUT)
        gradients = self._pair(operation, partner, Role.GRADIENT)
        came_back = [pair for pair in gradients if pair[0].key.path.startswith("output")]
        sent_back = [pair for pair in gradients if pair[0].key.path.startswith("input")]
        yield self._pair(operation, partner, Role.OUTPUT), inputs, operation.place.phase
        yield sent_back, inputs + came_back, Phase.BACKWARD

    def _judge(self, operation: Operation, scope: str | None = None) -> list[RecordResult]:
        partner = self._find_pairs()[operation]
        flag = _compare_numbers(operation.call, None if partner is None else partner.call)
        rows = []
        for targets, sources, phase in self._split(operation):
            entered = self._raw.find_largest(sources) if partner is not None else 0.0
            blame = self._blame(operation, phase, scope)
            rows += [self._judge_record(pair, blame, entered, flag) for pair in targets]
        return rows

    def _judge_record(self, pair: Pair, blame: Blame, entered: float, flag: str) -> RecordResult:
        gap = self._raw.gap(*pair)
        row = row_from_raw(pair[0], blame, gap, entered, "")
        if gap.known and not gap.close and flag:
            return replace(row, status=Status.FAIL, evidence="structure", note=flag)
        if gap.known and row.status == Status.INCONCLUSIVE and entered > gap.limit:
            return replace(row, status=Status.PROPAGATED, evidence="raw")
        return row

    def _blame(self, operation: Operation, phase: Phase, scope: str | None) -> Blame:
        place = operation.place
        node = self._nodes.get((place.rank, place.step, place.micro, place.scope, place.call))
        site = Site.MODULE if scope is not None or (node is not None and node.call.leaf) else Site.INLINE
        where = self._name_scope(operation) if scope is None else scope
        return Blame(where, site, phase, place.call if node is None else node.number, operation.name, operation.line)

    def _pair(self, operation: Operation, partner: Operation | None, role: Role) -> list[Pair]:
        theirs = {} if partner is None else partner.select(role)
        return [(record, theirs.get(path)) for path, record in operation.select(role).items()]


def _name_inside(first: Divergence, operation: Operation, row: RecordResult) -> Divergence:
    if first.op == operation.name and first.source == operation.line:
        return first  # the evidence is the operation's own
    text = f"{operation.name} at {operation.line}" if operation.line else operation.name
    flag = f" ({row.note})" if row.evidence == "structure" else ""
    evidence = f"{first.evidence}; inside, the first operation that differs on equal inputs is {text}{flag}"
    if first.site == Site.MODULE:
        return replace(first, evidence=evidence)
    return replace(first, evidence=evidence, op=operation.name, source=operation.line or first.source)


_SUSPECT = (Status.FAIL, Status.NONDETERMINISTIC, Status.INCONCLUSIVE, Status.MODE, Status.RANDOM)


def pair_operations(
    operations: Sequence[Operation], others: Sequence[Operation]
) -> Mapping[Operation, Operation | None]:
    """By name in order; what stands between two such pairs on both sides was replaced, one by one."""
    anchors = match_in_order([one.name for one in operations], [one.name for one in others])
    pairs: dict[Operation, Operation | None] = dict.fromkeys(operations)
    for left, right in fill_gaps(anchors, len(operations), len(others)):
        pairs[operations[left]] = others[right]
    return pairs


def _is_source(record: TensorRecord) -> bool:
    """Whether an operation gets it, in its forward or its backward pass."""
    key = record.key
    return key.role == Role.INPUT or (key.role == Role.GRADIENT and key.path.startswith("output"))


def _compare_numbers(ours: Call | None, theirs: Call | None) -> str:
    """Numbers and flags that are no tensors and differ, "" where none does."""
    if ours is None or theirs is None or ours.kind != theirs.kind:
        return ""
    known = dict(scalars(theirs.arguments))
    for path, leaf in scalars(ours.arguments):
        other = known.get(path)
        if other is None or not leaf["kind"] == other["kind"] == "scalar":
            continue
        left, right = leaf["value"], other["value"]
        if isinstance(left, float) and isinstance(right, float):
            differs = abs(left - right) > _SLACK * max(abs(left), abs(right))
        else:
            differs = type(left) is type(right) and left != right
        if differs:
            return f"{path}: the candidate passes {left!r}, the reference {right!r}"
    return ""
