"""Parameters before the first step, and what the optimizer made of them."""

from __future__ import annotations

import numpy as np

from precision_align.alignment.side import Side
from precision_align.comparison.raw import Gap, RawComparer
from precision_align.comparison.rows import Blame, make_row, row_from_raw
from precision_align.core.dtypes import Array, dtype_of
from precision_align.core.records import TensorRecord
from precision_align.core.results import Limit, RecordResult
from precision_align.core.terms import Phase, Role, Site, Status
from precision_align.storage.base import Dump

# A buffer that is computed at start (RoPE tables) may round differently on another host: two roundings in each of two
# library functions.
BUFFER_UNITS = 4.0
# Updates from bit-equal parameters, gradients and state: Adam's chain of about 8 operations, in units of the largest
# update, and the store's own rounding.
UPDATE_SHARE = 1e-4
STORE_UNITS = 4.0

Found = dict[tuple[str, str], TensorRecord]


class StateJudge:
    """Judges parameters, buffers and optimizer steps of paired steps."""

    def __init__(self, reference: Side | None, candidate: Side, raw: RawComparer) -> None:
        self._reference = reference
        self._candidate = candidate
        self._raw = raw

    def judge_start(self, rank: int, step: int, partner: int | None, is_first: bool) -> list[RecordResult]:
        """Rows for parameters and buffers as they stood before a step; strict before the first one."""
        if self._reference is None or partner is None:
            return []
        rows = []
        for role in (Role.PARAMETER, Role.BUFFER):
            ours = self._candidate.select_state(rank, step, role, Phase.FORWARD)
            theirs = self._reference.select_state(rank, partner, role, Phase.FORWARD)
            for place, record in ours.items():
                rows.append(self._judge_value(place, record, theirs.get(place), is_first and step == 0))
        return rows

    def _judge_value(
        self, place: tuple[str, str], record: TensorRecord, other: TensorRecord | None, strict: bool
    ) -> RecordResult:
        blame = Blame(place[0], Site.PARAMETERS, Phase.FORWARD, 0, str(record.key.role))
        gap = self._raw.gap(record, other)
        if other is None:
            return make_row(record, blame, Status.MISSING, "", note="the reference has no such parameter")
        if gap.equal:
            return make_row(record, blame, Status.PASS, "hash", note="bit-equal")
        limit = Limit("raw_max_abs", 0.0, "both sides start from the same values")
        if not strict:
            note = "differs already at the start of this step: see the steps before"
            return make_row(record, blame, Status.PROPAGATED, "raw", metrics=gap.metrics, note=note)
        if record.key.role == Role.BUFFER and _is_rounding(gap, record):
            note = f"a computed table that differs by less than {BUFFER_UNITS:g} roundings"
            return make_row(record, blame, Status.WARN, "raw", metrics=gap.metrics, limit=limit, note=note)
        note = gap.note or "stale or different weights: the runs do not start from the same values"
        return make_row(record, blame, Status.FAIL, "raw", metrics=gap.metrics, limit=limit, note=note)

    def judge_step(self, rank: int, step: int, partner: int | None) -> list[RecordResult]:
        """Rows for parameters and state after the optimizer's step."""
        if self._reference is None or partner is None:
            return []
        rows = []
        for role in (Role.PARAMETER, Role.STATE):
            ours = self._candidate.select_state(rank, step, role, Phase.STEP)
            theirs = self._reference.select_state(rank, partner, role, Phase.STEP)
            for place, record in ours.items():
                if role == Role.STATE and not place[1].startswith("after."):
                    continue
                rows.append(self._judge_update(rank, step, partner, place, record, theirs.get(place)))
        return rows

    def _judge_update(
        self,
        rank: int,
        step: int,
        partner: int,
        place: tuple[str, str],
        record: TensorRecord,
        other: TensorRecord | None,
    ) -> RecordResult:
        blame = Blame(place[0], Site.OPTIMIZER, Phase.STEP, 0, self._optimizer_name(rank, step))
        gap = self._raw.gap(record, other)
        if other is None:
            return make_row(record, blame, Status.MISSING, "", note="the reference recorded no such update")
        if gap.equal:
            return make_row(record, blame, Status.PASS, "raw", note="bit-equal to the reference")
        if record.key.role == Role.STATE:
            return row_from_raw(record, blame, gap, self._sources_equal(rank, step, partner, place), "")
        return self._judge_parameter(rank, step, partner, place, record, other, gap, blame)

    def _judge_parameter(
        self,
        rank: int,
        step: int,
        partner: int,
        place: tuple[str, str],
        record: TensorRecord,
        other: TensorRecord,
        gap: Gap,
        blame: Blame,
    ) -> RecordResult:
        assert self._reference is not None
        before = self._candidate.select_state(rank, step, Role.PARAMETER, Phase.FORWARD).get(place)
        before_other = self._reference.select_state(rank, partner, Role.PARAMETER, Phase.FORWARD).get(place)
        ours = _subtract(self._candidate.dump, record, before)
        theirs = _subtract(self._reference.dump, other, before_other)
        if ours is None or theirs is None or ours.shape != theirs.shape:
            return row_from_raw(record, blame, gap, self._sources_equal(rank, step, partner, place), "no updates known")
        largest = float(np.max(np.abs(theirs), initial=0.0))
        error = float(np.max(np.abs(ours - theirs), initial=0.0))
        metrics = {**gap.metrics, "update_error": error, "largest_update": largest}
        if largest > 0 and not np.any(ours):
            note = "not updated at all: every element is as before the step"
            return make_row(record, blame, Status.FAIL, "raw", metrics=metrics, note=note)
        size = float(np.max(np.abs(self._reference.dump.values(other.key).astype(np.float64)), initial=0.0))
        allowed = UPDATE_SHARE * largest + STORE_UNITS * dtype_of(record.dtype).roundoff * size
        limit = Limit("update_error", allowed, "arithmetic of an optimizer step from equal values")
        if error <= allowed:
            return make_row(record, blame, Status.PASS, "raw", metrics=metrics, limit=limit, note="same update")
        if self._sources_equal(rank, step, partner, place):
            note = "updated differently from equal parameters, gradients and state"
            return make_row(record, blame, Status.FAIL, "raw", metrics=metrics, limit=limit, note=note)
        note = "updated differently, from gradients or parameters that differ"
        return make_row(record, blame, Status.INCONCLUSIVE, "", metrics=metrics, limit=limit, note=note)

    def _sources_equal(self, rank: int, step: int, partner: int, place: tuple[str, str]) -> bool:
        """Parameter, gradient and (where recorded) state before the step are close on both sides."""
        assert self._reference is not None
        wanted = [(Role.PARAMETER, Phase.FORWARD), (Role.GRADIENT, Phase.STEP)]
        scope, name = place[0], place[1].rpartition(".")[2]
        for role, phase in wanted:
            ours = self._candidate.select_state(rank, step, role, phase).get((scope, name))
            theirs = self._reference.select_state(rank, partner, role, phase).get((scope, name))
            if ours is None or not self._raw.gap(ours, theirs).close:
                return False
        return self._states_close(rank, step, partner, scope, name)

    def _states_close(self, rank: int, step: int, partner: int, scope: str, name: str) -> bool:
        assert self._reference is not None
        theirs = self._reference.select_state(rank, partner, Role.STATE, Phase.STEP)
        for place, record in self._candidate.select_state(rank, step, Role.STATE, Phase.STEP).items():
            relevant = place[0] == scope and place[1].startswith("before.") and place[1].endswith(f".{name}")
            if relevant and not self._raw.gap(record, theirs.get(place)).close:
                return False
        return True

    def _optimizer_name(self, rank: int, step: int) -> str:
        for call in self._candidate.calls:
            if call.scope.startswith("optimizer:") and (call.rank, call.step) == (rank, step):
                return call.kind.rpartition(".")[2]
        return "optimizer"


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
