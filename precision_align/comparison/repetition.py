"""Further runs of the same program: what differs between two runs on bit-equal inputs is nondeterministic.

That is a finding of its own, at the code that does so first. It also bounds what a single run can show: an error no
larger than what the run differs from itself by is no fault with a place in the code.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from precision_align.alignment.pairing import Alignment
from precision_align.alignment.side import Side
from precision_align.comparison.backward import BackwardJudge
from precision_align.comparison.certificates import CertificateProvider
from precision_align.comparison.forward import ForwardJudge, is_random_call
from precision_align.comparison.operations import OperationJudge
from precision_align.comparison.raw import Gap, Pair, RawComparer
from precision_align.comparison.replaying import ReplayProvider
from precision_align.comparison.rows import Blame, Traced
from precision_align.core.records import TensorRecord
from precision_align.core.results import Limit, RecordResult
from precision_align.core.terms import Phase, Role, Site, Status

# Two runs that are each off by about the same differ by up to twice that; a third for how little two runs show.
NOISE_FACTOR = 3.0
# A metric of rows whose result differs from itself although everything it is computed from is bit-equal.
MARK = "self_over_max"


@dataclass
class Unstable:
    """One record that differs between runs on bit-equal inputs: by how much at most (relative L2 norm, and over the
    largest value), and in how many of them.
    """

    blame: Blame
    record: TensorRecord
    rel_l2: float
    over_max: float
    runs: int = 1

    @property
    def code(self) -> tuple[str, Site, Phase]:
        """Whose code it is."""
        return self.blame.scope, self.blame.site, self.blame.phase


@dataclass
class Repetitions:
    """What further runs of one side show. ``noise``: key -> the largest (rel_l2, over_max) that the run differs from
    itself by; ``unstable``: key -> finding; ``compared``: records that have a partner in each further run.
    """

    num_runs: int = 0
    compared: int = 0
    noise: dict[str, tuple[float, float]] = field(default_factory=dict)
    unstable: dict[str, Unstable] = field(default_factory=dict)

    def apply(self, row: RecordResult) -> RecordResult:
        """A row in the light of how far its run differs from itself."""
        found = self.unstable.get(row.key)
        within = row.status == Status.FAIL and self._is_within(row)
        if found is None and not within:
            return row
        if found is None:
            known = self._find_code(row)
            what = "its code differs from itself" if known else "the candidate differs from itself here"
            status = Status.NONDETERMINISTIC if known else Status.PROPAGATED
            return replace(row, status=status, note=f"{row.note}; but by no more than {what}")
        note = f"differs from itself on bit-equal inputs, in {found.runs} of {self._count_runs()}"
        metrics = {**row.metrics, MARK: found.over_max}
        if not within:
            return replace(row, metrics=metrics, note=f"{row.note}; {note}")
        note = f"{note}, by as much as its error: {row.note}"
        limit = row.limit or Limit(MARK, 0.0, "the same inputs give the same result")
        return replace(row, metrics=metrics, note=note, limit=limit, status=Status.NONDETERMINISTIC)

    def _find_code(self, row: RecordResult) -> list[Unstable]:
        """What else of the same code differs from itself: in an earlier step, or in another call."""
        return [found for found in self.unstable.values() if found.code == (row.scope, row.site, row.phase)]

    def _is_within(self, row: RecordResult) -> bool:
        """Whether the error of a failing row is within what its run differs from itself by.

        Once an update has differed the inputs of the two runs are not equal any more: then what the same code differed
        by before counts. Raw evidence has the error of the inputs in it, and so may the noise.
        """
        exact = self.unstable.get(row.key)
        own = [exact] if exact is not None else self._find_code(row)
        noise = [(found.rel_l2, found.over_max) for found in own]
        if row.evidence in ("raw", "forced") and row.key in self.noise:
            noise.append(self.noise[row.key])
        if row.metrics.get("nonfinite_mismatch") or row.metrics.get("raw_nonfinite"):
            return any(math.isinf(over) for _, over in noise)
        prefix = "" if "rel_l2" in row.metrics else "raw_"
        error = row.metrics.get(f"{prefix}rel_l2", row.metrics.get("raw_over_max", math.inf))
        return any(error <= NOISE_FACTOR * size for size, _ in noise)

    def _count_runs(self) -> str:
        return "1 further run" if self.num_runs == 1 else f"{self.num_runs} further runs"

    def describe(self, name: str) -> list[str]:
        """Notes: how many runs were held against each other, and what differs from itself, first of all where."""
        if not self.num_runs:
            return []
        one, runs = self.num_runs == 1, self._count_runs()
        if not self.noise:
            return [f"{name}: {runs} agree{'s' * one} bit for bit in all {self.compared} records"]
        if not self.unstable:
            return [f"{name}: {runs} differ{'s' * one}, but nowhere on bit-equal inputs: was it fed the same?"]
        first = next(iter(self.unstable.values()))
        place = f"{first.blame.op} in {first.blame.scope or '(root)'} ({first.blame.phase})"
        more = len({found.code for found in self.unstable.values()}) - 1
        others = f"; {more} further place{'s do' if more > 1 else ' does'} so, too" if more else ""
        return [
            f"{name} is nondeterministic: {place} gives other results on bit-equal inputs, by up to "
            f"{first.over_max:.1e} of the largest value, in {first.runs} of {runs}{others}"
        ]


def repeat(side: Side, further: Sequence[Side]) -> Repetitions:
    """Hold a run against further runs of the same program."""
    found = Repetitions(len(further))
    for other in further:
        _Pairing(side, other).add_to(found)
    found.unstable = dict(sorted(found.unstable.items(), key=lambda item: _walk_order(item[1].record)))
    return found


def _walk_order(record: TensorRecord) -> tuple[int, int, int]:
    return record.key.step, record.key.rank, record.order


class _Pairing:
    """One run and one further run of the same program."""

    def __init__(self, side: Side, other: Side) -> None:
        self._side = side
        self._alignment = Alignment(other, side)
        self._raw = RawComparer(other.dump, side.dump)
        replay, certificates = ReplayProvider(self._alignment, None), CertificateProvider(self._alignment)
        owned = self._alignment.pair_owned
        self._forward = ForwardJudge(self._alignment, self._raw, replay, owned, certificates)
        self._forward.index_partners(side.nodes)
        self._backward = BackwardJudge(self._alignment, self._raw, replay, self._forward, owned, certificates)
        self._operations = OperationJudge(self._alignment, self._raw)

    def add_to(self, found: Repetitions) -> None:
        """Take what this further run shows into what the ones before it showed."""
        for blame, pair, sources in self._trace():
            record, gap = pair[0], self._raw.gap(*pair)
            if not gap.known:
                continue
            found.compared += 1
            if gap.equal:
                continue
            key, over = str(record.key), gap.metrics.get("raw_over_max", math.inf)
            over = math.inf if gap.metrics.get("raw_nonfinite") else over
            known = found.noise.get(key, (0.0, 0.0))
            found.noise[key] = max(known[0], _measure(gap)), max(known[1], over)
            if sources and self._raw.are_equal(sources):
                self._add(found, Unstable(self._name_inside(blame, record), record, _measure(gap), over))

    def _add(self, found: Repetitions, new: Unstable) -> None:
        known = found.unstable.setdefault(str(new.record.key), new)
        if known is not new:
            known.rel_l2, known.over_max = max(known.rel_l2, new.rel_l2), max(known.over_max, new.over_max)
            known.runs += 1

    def _trace(self) -> Iterator[Traced]:
        """Every result with all that it is computed from, forward, backward and in optimizer steps."""
        for node in self._side.nodes:
            if is_random_call(node):
                continue
            yield from self._forward.trace(node)
            yield from self._backward.trace(node)
        if self._operations.is_alone:
            yield from self._operations.trace()
        yield from self._trace_steps()

    def _trace_steps(self) -> Iterator[Traced]:
        for (rank, step), calls in self._side.steps.items():
            partner = next((theirs.step for unit, theirs in self._alignment.units.items() if unit.step == step), None)
            if partner is None or not calls:
                continue
            updated = self._pair_state(rank, step, partner, Role.PARAMETER, Phase.STEP)
            states = self._pair_state(rank, step, partner, Role.STATE, Phase.STEP)
            before = self._pair_state(rank, step, partner, Role.PARAMETER, Phase.FORWARD)
            gradients = self._pair_state(rank, step, partner, Role.GRADIENT, Phase.STEP)
            for owner, pair in updated.items():
                kept = [found for place, found in states.items() if _is_state_before(place, owner)]
                sources = [known for known in (before.get(owner), gradients.get(owner), *kept) if known is not None]
                op = calls[0].kind.rpartition(".")[2]
                yield Blame(owner[0], Site.OPTIMIZER, Phase.STEP, 0, op), pair, sources

    def _pair_state(self, rank: int, step: int, partner: int, role: Role, phase: Phase) -> dict[tuple[str, str], Pair]:
        assert self._alignment.reference is not None
        theirs = self._alignment.reference.select_state(rank, partner, role, phase)
        ours = self._side.select_state(rank, step, role, phase)
        return {place: (record, theirs.get(place)) for place, record in ours.items()}

    def _name_inside(self, blame: Blame, record: TensorRecord) -> Blame:
        """The first operation inside the call that does so, where operations were recorded."""
        for inner, pair, sources in self._operations.trace():
            same = (inner.scope, inner.call, inner.phase) == (blame.scope, blame.call, blame.phase)
            if not same or (pair[0].key.step, pair[0].key.rank) != (record.key.step, record.key.rank):
                continue
            if self._raw.are_equal(sources) and not self._raw.gap(*pair).equal:
                return replace(blame, op=inner.op, source=inner.source or blame.source)
        return blame


def _is_state_before(place: tuple[str, str], owner: tuple[str, str]) -> bool:
    return place[0] == owner[0] and place[1].startswith("before.") and place[1].endswith(f".{owner[1]}")


def _measure(gap: Gap) -> float:
    """A difference as one relative number, from whatever was stored."""
    known: Iterable[str] = ("raw_rel_l2", "raw_sketch_rel_l2", "raw_over_max", "raw_statistics_moved")
    return next((gap.metrics[name] for name in known if name in gap.metrics), math.inf)
