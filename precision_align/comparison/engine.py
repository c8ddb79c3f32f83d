"""The walk over both runs: each record of the candidate gets one verdict from the strongest evidence there is.

Order of evidence: equal hashes of a record and of all it is computed from; local replay; raw difference. The engine
knows no order of causes: that is the business of :mod:`precision_align.divergence`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from precision_align.alignment.fitting import fit
from precision_align.alignment.side import Node, Side, Unit
from precision_align.comparison.backward import BackwardJudge
from precision_align.comparison.blindness import describe_blindness
from precision_align.comparison.boundaries import find_boundary, judge_collectives, note_short_ranks
from precision_align.comparison.certificates import CertificateProvider
from precision_align.comparison.continuity import judge_continuity
from precision_align.comparison.deadlines import Deadline
from precision_align.comparison.forced import ForcedReplay, mark_row, note_origin
from precision_align.comparison.forward import ForwardJudge
from precision_align.comparison.fused import judge_fused
from precision_align.comparison.inputs import judge_inputs
from precision_align.comparison.journals import Journal
from precision_align.comparison.operations import OperationJudge
from precision_align.comparison.presence import (
    check_common,
    find_interruptions,
    note_further,
    note_idle,
    rows_missing,
)
from precision_align.comparison.raw import RawComparer
from precision_align.comparison.recomputation import RecomputationJudge
from precision_align.comparison.recomputing import Recomputer
from precision_align.comparison.repetition import Repetitions, repeat
from precision_align.comparison.replaying import ReplayProvider
from precision_align.comparison.rows import WEAKER, note_disagreements
from precision_align.comparison.rules import Rules
from precision_align.comparison.stepping import StateJudge
from precision_align.comparison.totals import TotalJudge
from precision_align.comparison.walking import Progress, Walk
from precision_align.core.dtypes import Array
from precision_align.core.results import ModulePair, RecordResult
from precision_align.core.terms import Phase, Status
from precision_align.storage.base import Dump


@dataclass(frozen=True)
class Comparison:
    """All rows in the candidate's walk order, and what the walk could not see.

    ``interrupted``: a run was cut off or a dump is damaged, and the other side has records without a partner for it.
    """

    rows: list[RecordResult]
    notes: list[str]
    roots: frozenset[str]
    interrupted: bool = False
    modules: Sequence[ModulePair] = ()


class Engine:
    """Compares one candidate with a reference, or with the reference's code alone."""

    def __init__(
        self,
        reference: Dump | None,
        candidate: Dump,
        *,
        replay: Any = None,
        rules: Rules | None = None,
        journal: Journal | None = None,
        deadline: Deadline | None = None,
        ranks: Dump | None = None,
        rename: Any = None,
        again: Sequence[Dump] = (),
        reference_again: Sequence[Dump] = (),
    ):
        """``ranks``: all ranks of the candidate, where that is these merged into one; ``rename``: which module of the
        candidate is which of the reference (alignment.renaming); ``again``, ``reference_again``: dumps of further runs
        of the same programs, on the same data.
        """
        self._deadline = deadline or Deadline()
        self._reference = Side(reference) if reference is not None else None
        self._fitted = fit(self._reference, candidate, rename)
        self._candidate, self._alignment = self._fitted.side, self._fitted.alignment
        candidate = self._candidate.dump
        check_common(self._reference, self._candidate, self._alignment)
        self._rules = rules or Rules()
        self._repeated = repeat(self._candidate, [self._fitted.arrange(dump) for dump in again])
        theirs = [Side(dump) for dump in reference_again]
        self._reference_repeated = repeat(self._reference, theirs) if self._reference is not None else Repetitions()
        self._raw = RawComparer(reference, candidate, journal, self._deadline)
        self._certificates = CertificateProvider(self._alignment)
        self._is_forced = candidate.info.forced
        self._replay = (ForcedReplay if self._is_forced else ReplayProvider)(
            self._alignment, replay, journal, self._deadline
        )
        self._state = StateJudge(self._reference, self._candidate, self._raw, self._replay)
        self._totals = TotalJudge(self._reference, self._candidate, self._raw)
        self._forward = ForwardJudge(
            self._alignment, self._raw, self._replay, self._alignment.pair_owned, self._certificates
        )
        self._forward.index_partners(self._candidate.nodes)
        self._recomputed = RecomputationJudge(self._candidate)
        self._backward = BackwardJudge(
            self._alignment, self._raw, self._replay, self._forward, self._alignment.pair_owned, self._certificates
        )
        self.operations = OperationJudge(self._alignment, self._raw)
        self.recomputer = Recomputer(
            self._reference,
            self._candidate,
            self._alignment,
            self._replay,
            lambda rank, step: self._find_partner_step(self._candidate.select_nodes(rank, step)),
        )
        self._ranks = ranks

    def run(self, progress: Progress | None = None) -> Comparison:
        """Judge everything. ``progress`` is told (passes through calls done, passes in all): forward and backward."""
        self._deadline.start()
        rows: list[RecordResult] = []
        seen: set[int] = set()
        places = sorted({(unit.rank, unit.step) for unit in self._candidate.units})
        steps = [self._candidate.select_nodes(rank, step) for rank, step in places]
        judges = (self._forward, self._backward)
        walk = Walk(judges, steps, self._raw, self._deadline, progress)
        walk.judge_ahead()
        for (rank, step), nodes in zip(places, steps):
            partner = self._find_partner_step(nodes)
            rows += self._state.judge_start(rank, step, partner, rank not in seen)
            seen.add(rank)
            rows += judge_inputs(self._forward, self._raw, nodes, self._alignment)
            for judge in judges:
                for node in nodes:
                    rows += walk.take(judge, node)
            rows += self._recomputed.judge(rank, step)
            rows += self._backward.judge_lacking(nodes)
            rows += self._totals.judge(rank, step, partner)
            rows += self._state.judge_step(rank, step, partner)
            rows += judge_continuity(self._reference, self._candidate, rank, step, partner)
        rows += judge_fused(self._fitted, self._replay)
        rows += self.operations.judge_all() if self.operations.is_alone else self.operations.judge_uncalled(rows)
        merged = self._ranks is not None
        rows += judge_collectives(
            self._ranks or self._candidate.dump, self._candidate, min(self._candidate.dump.ranks) if merged else None
        )
        interruptions = find_interruptions(self._reference, self._candidate, self._alignment)
        lost = rows_missing(self._reference, self._alignment, everything=bool(interruptions))
        rows += lost
        rows = [mark_row(row) for row in rows] if self._is_forced else rows
        rows.sort(key=lambda row: (row.step, row.rank, row.order))
        rows = [self._rules.apply(self._repeated.apply(row)) for row in rows]
        alone = rows if self.operations.is_alone else []
        roots = frozenset(
            {*(node.scope for node in self._candidate.nodes if node.parent is None), *(r.scope for r in alone)}
        )
        notes = [*interruptions, *self._collect_notes(rows)]
        return Comparison(rows, notes, roots, bool(interruptions and lost), self._fitted.modules)

    def list_parts(self, scope: str) -> list[tuple[str, Array]]:
        """(the candidate's module, its rows) of a module of the reference that the candidate has in several."""
        for fusion in self._fitted.fusions:
            if fusion.whole == scope and not fusion.whole_is_candidate:
                return [(name, fusion.find_rows(part)) for part, name in enumerate(fusion.parts)]
        return []

    def name_own(self, scope: str) -> str:
        """What the candidate calls a module, "" where that is its name in the report."""
        return self._fitted.own.get(scope, "")

    def measure_share(self, index: int, count: int, progress: Progress | None = None) -> None:
        """Do the slow part of one of ``count`` shares of the walk (from 0), for the journal alone.

        Shares are contiguous in the walk and of about equal numbers of elements, so that a share is whole steps and
        ranks where there are many. Every share together is all that :meth:`run` measures and replays.
        """
        nodes = self._candidate.nodes
        mine = [node for node, share in zip(nodes, share_out(nodes, count)) if share == index]
        last = {(node.unit.rank, node.unit.step): node for node in nodes}
        for done, node in enumerate(mine, 1):
            self._forward.judge(node)
            self._backward.judge(node)
            rank, step = node.unit.rank, node.unit.step
            if last[rank, step] is node:
                partner = self._find_partner_step(self._candidate.select_nodes(rank, step))
                self._state.judge_start(rank, step, partner, False)
                self._totals.judge(rank, step, partner)
                self._state.judge_step(rank, step, partner)
            if progress is not None:
                progress(done, len(mine))

    @property
    def is_out_of_time(self) -> bool:
        """Whether the time budget is spent."""
        return self._deadline.is_over()

    def read_pair(self, row_key: str) -> tuple[Array, Array] | None:
        """The candidate's and the reference's numbers of a judged record, or None where one is not stored."""
        return self._raw.read_pair(row_key)

    @property
    def candidate(self) -> Side:
        """The candidate's side, as it is compared."""
        return self._candidate

    def find_reference_outputs(self, node: Node) -> dict[str, Any]:
        """Path -> torch tensor that the reference's call returned in place of a node's; empty where it has none."""
        partner = self._alignment.pairs.get(node)
        if partner is None or self._reference is None:
            return {}
        load = import_module("precision_align.replay.values").load_tensor
        return {path: load(self._reference.dump, record) for path, record in partner.outputs.items()}

    def _note_flags(self) -> list[str]:
        """Modules in training mode on one side and in evaluation mode on the other."""
        pairs = self._alignment.pairs.items()
        scopes = [node.scope or "(root)" for node, other in pairs if node.call.training != other.call.training]
        unique = list(dict.fromkeys(scopes))
        if not unique:
            return []
        more = f" and {len(unique) - 3} more" if len(unique) > 3 else ""
        return [f"training flag differs from the reference's in {', '.join(unique[:3])}{more}"]

    def _find_partner_step(self, nodes: Sequence[Node]) -> int | None:
        for node in nodes:
            partner = self._alignment.units.get(node.unit)
            if partner is not None:
                return partner.step
        return None

    def _collect_notes(self, rows: list[RecordResult]) -> list[str]:
        reference = None if self._reference is None else self._reference.dump
        notes = note_origin(reference, self._candidate.dump)
        notes += note_short_ranks(reference, self._ranks or self._candidate.dump)
        notes += [] if reference is None else find_boundary(reference, self._candidate.dump)
        notes += self._fitted.describe()
        notes += [*self._repeated.describe("the candidate"), *self._reference_repeated.describe("the reference")]
        notes += [*self._alignment.notes, *self._replay.notes, *self._replay.describe_failures()]
        if self._replay.reason:
            notes.append(self._replay.reason)
        for name, side in (("reference", self._reference), ("candidate", self._candidate)):
            if side is None:
                continue
            notes += [f"{name}: {note}" for note in side.dump.notes]
            notes += note_idle(name, side)
            if side.recomputed:
                notes.append(
                    f"{name}: {side.recomputed} recomputed calls (activation checkpointing); those of the candidate "
                    "are held against their own first pass"
                )
        notes += [*self._certificates.describe(), *note_disagreements(rows), *self._note_flags()]
        notes += self.operations.describe()
        notes += note_further(self._reference, self._alignment)
        weak = sum(
            row.evidence in ("raw", *WEAKER) and row.status == Status.PASS and row.phase != Phase.STEP for row in rows
        )
        if weak and not self._replay.is_given:
            notes.append(
                f"{weak} records were compared raw only, which overlooks errors below the dtype's raw limit: give the "
                "reference's code with replay= (--replay MODULE:FACTORY) for a float64 verdict"
            )
        sampled = sum("raw_sampled" in row.metrics for row in rows)
        if sampled:
            notes.append(
                f"{sampled} record{'s were' if sampled > 1 else ' was'} compared by a sample of the elements: what a "
                "sample shows stands beside each, and a fault in fewer elements may hide there"
            )
        notes += describe_blindness(self._candidate)
        return list(dict.fromkeys(notes))


def share_out(nodes: Sequence[Node], count: int) -> list[int]:
    """For each node the share it belongs to: its middle's place among all elements of all tensors."""
    sizes = [1 + sum(math.prod(record.shape) for record in node.tensors.values()) for node in nodes]
    total, passed, shares = sum(sizes), 0, []
    for size in sizes:
        shares.append((2 * passed + size) * count // (2 * total))
        passed += size
    return shares


__all__ = ["Comparison", "Engine", "Progress", "Unit"]
