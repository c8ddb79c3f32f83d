"""Parameters before the first step, and what the optimizer made of them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from precision_align.alignment.side import Owner, Side
from precision_align.comparison.continuity import EDITED, find_left
from precision_align.comparison.optimizers import (
    build_update,
    compare_hyperparameters,
    find_step,
    split_owner,
    split_state,
)
from precision_align.comparison.raw import Gap, RawComparer, is_equal
from precision_align.comparison.replaying import ReplayProvider
from precision_align.comparison.rows import Blame, make_row, row_from_judgement, row_from_raw
from precision_align.core.dtypes import Array, dtype_of
from precision_align.core.records import TensorRecord
from precision_align.core.results import Limit, RecordResult
from precision_align.core.terms import Phase, Role, Site, Status
from precision_align.numerics.judgement import Judgement
from precision_align.storage.base import Dump

# A buffer that is computed at start (RoPE tables) may round differently on another host: two roundings in each of two
# library functions.
BUFFER_UNITS = 4.0
# Updates from bit-equal parameters, gradients and state: Adam's chain of about 8 operations, in units of the largest
# update, and the store's own rounding.
UPDATE_SHARE = 1e-4
STORE_UNITS = 4.0
# Elements whose sources agree to a part in ten thousand must agree in their updates to a hundred times that: products
# and quotients of powers up to two of them, and of sums that cancel once.
ALIKE = 1e-4
UPDATE_GROWTH = 100.0

Found = Mapping[Owner, TensorRecord]


class StateJudge:
    """Judges parameters, buffers and optimizer steps of paired steps."""

    def __init__(self, reference: Side | None, candidate: Side, raw: RawComparer, replay: ReplayProvider) -> None:
        self._reference = reference
        self._candidate = candidate
        self._raw = raw
        self._replay = replay

    def judge_start(self, rank: int, step: int, partner: int | None, is_first: bool) -> list[RecordResult]:
        """Rows for parameters and buffers as they stood before a step; strict before the first one."""
        if self._reference is None or partner is None:
            return []
        rows = []
        for role in (Role.PARAMETER, Role.BUFFER):
            ours = self._candidate.select_state(rank, step, role, Phase.FORWARD)
            theirs = self._reference.select_state(rank, partner, role, Phase.FORWARD)
            known = add_tied(self._reference, theirs)
            pairs = [(place, record, known.get(place)) for place, record in ours.items()]
            # tied here, but two parameters there: the second name has values of its own to be held against
            pairs += [
                (place, record, theirs[place])
                for place, record in add_tied(self._candidate, ours).items()
                if place not in ours and place in theirs
            ]
            rows += [
                self._judge_value(*pair, is_first and step == 0, self._was_edited(rank, step, partner, pair))
                for pair in pairs
            ]
        return rows

    def _judge_value(
        self,
        place: tuple[str, str],
        record: TensorRecord,
        other: TensorRecord | None,
        strict: bool,
        edited: bool,
    ) -> RecordResult:
        blame = Blame(place[0], Site.PARAMETERS, Phase.FORWARD, 0, str(record.key.role))
        gap = self._raw.gap(record, other)
        if other is None:
            return make_row(record, blame, Status.MISSING, "", note="the reference has no such parameter")
        if gap.equal:
            return make_row(record, blame, Status.PASS, "hash", note="bit-equal")
        limit = Limit("raw_max_abs", 0.0, "both sides start from the same values")
        if edited:
            return make_row(record, blame, Status.FAIL, "raw", metrics=gap.metrics, note=EDITED)
        if not strict:
            note = "differs already at the start of this step: see the steps before"
            return make_row(record, blame, Status.PROPAGATED, "raw", metrics=gap.metrics, note=note)
        if record.key.role == Role.BUFFER and _is_rounding(gap, record):
            note = f"a computed table that differs by less than {BUFFER_UNITS:g} roundings"
            return make_row(record, blame, Status.WARN, "raw", metrics=gap.metrics, limit=limit, note=note)
        note = gap.note or "stale or different weights: the runs do not start from the same values"
        return make_row(record, blame, Status.FAIL, "raw", metrics=gap.metrics, limit=limit, note=note)

    def _was_edited(
        self, rank: int, step: int, partner: int, pair: tuple[tuple[str, str], TensorRecord, TensorRecord | None]
    ) -> bool:
        """The candidate's parameter is not what its last step left, and the reference's is."""
        place, record, other = pair
        assert self._reference is not None
        ours, theirs = find_left(self._candidate, rank, step, place), find_left(self._reference, rank, partner, place)
        if ours is None or theirs is None or other is None or record.key.role != Role.PARAMETER:
            return False
        return is_equal(other, theirs) and not is_equal(record, ours)

    def judge_step(self, rank: int, step: int, partner: int | None) -> list[RecordResult]:
        """Rows for parameters and state after the optimizer's step."""
        targets = list(self._list_updated(rank, step, partner))
        equal = all(self._raw.gap(record, other).equal for _, record, other in targets)
        verdicts, reason = ({}, "") if equal else self._replay_step(rank, step, partner)
        rows = [
            self._judge_update(at, record, other, verdicts.get(_name_result(at.owner, record.key.role)), reason)
            for at, record, other in targets
        ]
        rows += self._judge_lacking(rank, step, partner) + self._judge_start_state(rank, step, partner)
        differing = self._compare_hyperparameters(rank, step, partner)
        return [_add_note(row, differing) for row in rows]

    def _list_updated(
        self, rank: int, step: int, partner: int | None
    ) -> Iterator[tuple[_Place, TensorRecord, TensorRecord | None]]:
        """What the optimizer left: parameters and state, with the reference's."""
        for role in (Role.PARAMETER, Role.STATE):
            theirs: Found = {}
            if self._reference is not None and partner is not None:
                theirs = self._reference.select_state(rank, partner, role, Phase.STEP)
            for place, record in self._candidate.select_state(rank, step, role, Phase.STEP).items():
                if role == Role.PARAMETER or place[1].startswith("after."):
                    yield _Place(rank, step, partner, place), record, theirs.get(place)

    def _replay_step(self, rank: int, step: int, partner: int | None) -> tuple[Mapping[Any, Judgement], str]:
        update = None
        if not self._replay.reason:
            update = build_update(self._candidate, self._reference, rank, step, partner)
        return self._replay.judge_update(update) if update is not None else ({}, "")

    def _judge_start_state(self, rank: int, step: int, partner: int | None) -> list[RecordResult]:
        """Optimizer state that a run starts with (from a checkpoint), where it starts from the reference's weights."""
        if self._reference is None or partner is None or (rank, step) != self._first(rank):
            return []
        ours, theirs = (
            side.select_state(rank, at, Role.STATE, Phase.STEP)
            for side, at in ((self._candidate, step), (self._reference, partner))
        )
        left, right = (
            side.select_state(rank, at, Role.PARAMETER, Phase.FORWARD)
            for side, at in ((self._candidate, step), (self._reference, partner))
        )
        rows = []
        for place, other in theirs.items():
            moment, name, local = split_state(place[1])
            record, owner = ours.get(place), (place[0], local)
            same = owner in left and owner in right and is_equal(left[owner], right[owner])
            if moment != "before" or not same or (record is not None and self._raw.gap(record, other).close):
                continue
            blame = Blame(place[0], Site.OPTIMIZER, Phase.STEP, 0, self._optimizer_name(rank, step))
            what = "is missing" if record is None else "differs"
            note = f"optimizer state {name} of {local} {what} at the start, though the weights are bit-equal"
            order = self._candidate.steps[rank, step][0].enter if self._candidate.steps.get((rank, step)) else None
            metrics = {} if record is None else self._raw.gap(record, other).metrics
            rows.append(make_row(record or other, blame, Status.FAIL, "raw", metrics=metrics, note=note, order=order))
        return rows

    def _first(self, rank: int) -> tuple[int, int]:
        """The first recorded step of a rank."""
        return rank, min((unit.step for unit in self._candidate.units if unit.rank == rank), default=-1)

    def _judge_lacking(self, rank: int, step: int, partner: int | None) -> list[RecordResult]:
        """Parameters that the reference's optimizer updates and the candidate's does not hold."""
        ours = self._candidate.select_state(rank, step, Role.PARAMETER, Phase.STEP)
        if self._reference is None or partner is None or not ours:
            return []
        known = add_tied(self._candidate, ours)
        before = self._reference.select_state(rank, partner, Role.PARAMETER, Phase.FORWARD)
        order = max(record.order for record in ours.values())
        rows = []
        for place, record in self._reference.select_state(rank, partner, Role.PARAMETER, Phase.STEP).items():
            if place in known or (place in before and is_equal(record, before[place])):
                continue
            blame = Blame(place[0], Site.OPTIMIZER, Phase.STEP, 0, self._optimizer_name(rank, step))
            absent = self._candidate.lacks_module(rank, step, place[0], before)
            note = f"not updated: the candidate's optimizer does not hold {place[1]} of {place[0] or 'the root'}"
            note, status = ("the candidate has no such module", Status.MISSING) if absent else (note, Status.FAIL)
            rows.append(make_row(record, blame, status, "structure", note=note, order=order))
        return rows

    def _judge_update(
        self, at: _Place, record: TensorRecord, other: TensorRecord | None, judgement: Judgement | None, reason: str
    ) -> RecordResult:
        blame = Blame(at.owner[0], Site.OPTIMIZER, Phase.STEP, 0, self._optimizer_name(at.rank, at.step))
        gap = self._raw.gap(record, other)
        if gap.equal:
            return make_row(record, blame, Status.PASS, "raw", note="bit-equal to the reference")
        if judgement is not None and judgement.status != Status.INCONCLUSIVE:
            row = row_from_judgement(record, blame, judgement, gap)
            unchanged = row.status == Status.FAIL and self._is_unchanged(at, record)
            return _add_note(row, ["not updated at all: every element is as before the step"] if unchanged else [])
        if other is None or at.partner is None:
            missing = Status.MISSING if self._reference is not None else Status.INCONCLUSIVE
            note = "the reference recorded no such update" if self._reference is not None else reason
            return make_row(record, blame, missing, "", note=note)
        if record.key.role == Role.STATE:
            return row_from_raw(record, blame, gap, self._measure_sources(at), reason)
        return self._judge_parameter(at, record, other, gap, blame)

    def _is_unchanged(self, at: _Place, record: TensorRecord) -> bool:
        before = self._candidate.select_state(at.rank, at.step, Role.PARAMETER, Phase.FORWARD).get(at.owner)
        return before is not None and is_equal(record, before)

    def _compare_hyperparameters(self, rank: int, step: int, partner: int | None) -> list[str]:
        if self._reference is None or partner is None:
            return []
        return compare_hyperparameters(
            find_step(self._candidate, rank, step), find_step(self._reference, rank, partner)
        )

    def _judge_parameter(
        self, at: _Place, record: TensorRecord, other: TensorRecord, gap: Gap, blame: Blame
    ) -> RecordResult:
        assert self._reference is not None
        assert at.partner is not None
        before = self._candidate.select_state(at.rank, at.step, Role.PARAMETER, Phase.FORWARD).get(at.owner)
        before_other = self._reference.select_state(at.rank, at.partner, Role.PARAMETER, Phase.FORWARD).get(at.owner)
        ours = _subtract(self._candidate.dump, record, before)
        theirs = _subtract(self._reference.dump, other, before_other)
        if ours is None or theirs is None or ours.shape != theirs.shape:
            return row_from_raw(record, blame, gap, self._measure_sources(at), "no updates known")
        largest = float(np.max(np.abs(theirs), initial=0.0))
        wrong = np.abs(ours - theirs)
        error = float(np.max(wrong, initial=0.0))
        metrics = {**gap.metrics, "update_error": error, "largest_update": largest}
        if largest > 0 and not np.any(ours):
            note = "not updated at all: every element is as before the step"
            return make_row(record, blame, Status.FAIL, "raw", metrics=metrics, note=note)
        size = float(np.max(np.abs(self._reference.dump.values(other.key).astype(np.float64)), initial=0.0))
        allowed = UPDATE_SHARE * largest + STORE_UNITS * dtype_of(record.dtype).roundoff * size
        limit = Limit("update_error", allowed, "arithmetic of an optimizer step from equal values")
        if error <= allowed:
            return make_row(record, blame, Status.PASS, "raw", metrics=metrics, limit=limit, note="same update")
        alike = self._find_alike(at, ours.shape)
        if alike is not None and bool(np.any(wrong[alike] > allowed + UPDATE_GROWTH * ALIKE * np.abs(theirs[alike]))):
            note = "updated differently from equal parameters, gradients and state"
            return make_row(record, blame, Status.FAIL, "raw", metrics=metrics, limit=limit, note=note)
        note = "updated differently, from gradients or parameters that differ"
        return make_row(record, blame, Status.INCONCLUSIVE, "", metrics=metrics, limit=limit, note=note)

    def _find_alike(self, at: _Place, shape: tuple[int, ...]) -> Array | None:
        """Where gradient and state of an element agree on both sides to ALIKE of themselves; None: not known.

        An update may be the quotient of two of them (Adam), so that being near in terms of the largest is not enough.
        """
        found: Array = np.ones(shape, dtype=bool)
        pairs = self._pair_sources(at)
        for record, other in pairs:
            if other is None or record.shape != other.shape:
                return None
            try:
                left, right = self._candidate.dump.values(record.key), self._read_reference(other)
            except KeyError:
                return None
            close = np.abs(left.astype(np.float64) - right) <= ALIKE * np.abs(right)
            if close.shape == shape:
                found &= close
            elif not close.all():
                return None
        return found if pairs else None

    def _read_reference(self, record: TensorRecord) -> Array:
        assert self._reference is not None
        return np.asarray(self._reference.dump.values(record.key).astype(np.float64))

    def _measure_sources(self, at: _Place) -> float:
        return 0.0 if self._sources_equal(at) else math.inf

    def _sources_equal(self, at: _Place) -> bool:
        """Parameter, gradient and (where recorded) state before the step are close on both sides."""
        pairs = self._pair_sources(at)
        return bool(pairs) and all(self._raw.gap(record, other).close for record, other in pairs)

    def _pair_sources(self, at: _Place) -> list[tuple[TensorRecord, TensorRecord | None]]:
        """What an update is made of, with the reference's; empty where parameter or gradient is unknown."""
        assert self._reference is not None
        assert at.partner is not None
        scope, name = at.owner[0], at.owner[1].rpartition(".")[2]
        found: list[tuple[TensorRecord, TensorRecord | None]] = []
        for role, phase in ((Role.PARAMETER, Phase.FORWARD), (Role.GRADIENT, Phase.STEP)):
            ours = self._candidate.select_state(at.rank, at.step, role, phase).get((scope, name))
            theirs = self._reference.select_state(at.rank, at.partner, role, phase).get((scope, name))
            if ours is None:
                return []
            found.append((ours, theirs))
        others = self._reference.select_state(at.rank, at.partner, Role.STATE, Phase.STEP)
        owned = self._candidate.select_owned(at.rank, at.step, Role.STATE, Phase.STEP, scope)
        for place, record in owned.items():
            if place[1].startswith("before.") and place[1].endswith(f".{name}"):
                found.append((record, others.get(place)))
        return found

    def _optimizer_name(self, rank: int, step: int) -> str:
        call = next(iter(self._candidate.steps.get((rank, step), [])), None)
        return "optimizer" if call is None else call.kind.rpartition(".")[2]


def _name_result(place: tuple[str, str], role: Role) -> tuple[tuple[str, str], str]:
    """How the replay of a step names a record: (owner, name of the state or "")."""
    if role == Role.PARAMETER:
        return place, ""
    _, name, local = split_state(place[1])
    return (place[0], local), name


@dataclass(frozen=True)
class _Place:
    """One owner in one step: the candidate's step, the reference's, and (aligned scope, path)."""

    rank: int
    step: int
    partner: int | None
    owner: Owner


def _add_note(row: RecordResult, notes: list[str]) -> RecordResult:
    if not notes or row.status not in (Status.FAIL, Status.WARN, Status.INCONCLUSIVE):
        return row
    return replace(row, note="; ".join([*notes, row.note]))


def add_tied(side: Side, records: Found) -> dict[Owner, TensorRecord]:
    """Records of parameters under all their names: tied ones are stored under the first."""
    found = dict(records)
    for name, others in side.dump.info.parameters.items():
        first = split_owner(side, name)
        for other in others:
            if first in records:
                found.setdefault(split_owner(side, other), records[first])
    return found


def _is_rounding(gap: Gap, record: TensorRecord) -> bool:
    kind = dtype_of(record.dtype)
    if not kind.is_floating or "raw_over_max" not in gap.metrics or gap.metrics.get("raw_nonfinite"):
        return False
    return gap.metrics["raw_over_max"] <= BUFFER_UNITS * kind.roundoff


def _subtract(dump: Dump, after: TensorRecord, before: TensorRecord | None) -> Array | None:
    if before is None or before.shape != after.shape:
        return None
    try:
        result = dump.values(after.key).astype(np.float64) - dump.values(before.key).astype(np.float64)
    except KeyError:
        return None
    return np.asarray(result)
