"""What happens between recorded steps: weights, buffers or optimizer state that change although no step was made.

A run is continuous where a step finds what the step before left. Where the reference is and the candidate is not,
something outside model and optimizer reached in: weights loaded, averaged or cast, state cleared, a step skipped.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from precision_align.alignment.side import Owner, Side
from precision_align.comparison.raw import is_equal
from precision_align.comparison.rows import Blame, make_row
from precision_align.core.records import TensorRecord
from precision_align.core.results import RecordResult
from precision_align.core.terms import Phase, Role, Site, Status

EDITED = "changed between the last optimizer step and this one, which the reference does not do"


def judge_continuity(
    reference: Side | None, candidate: Side, rank: int, step: int, partner: int | None
) -> list[RecordResult]:
    """Rows for what was changed, cleared or skipped on the candidate alone before and in a step."""
    if reference is None or partner is None:
        return []
    rows = [*_judge_buffers(reference, candidate, rank, step, partner)]
    rows += _judge_states(reference, candidate, rank, step, partner)
    return rows + _judge_skipped(reference, candidate, rank, step, partner)


def find_left(side: Side, rank: int, step: int, owner: Owner) -> TensorRecord | None:
    """A parameter as the step before left it; None where that step or its optimizer was not recorded."""
    if not side.count_updates(rank, step - 1, sys.maxsize):
        return None
    return side.parameters_left(rank, step - 1).get(owner)


def _judge_buffers(reference: Side, candidate: Side, rank: int, step: int, partner: int) -> Iterator[RecordResult]:
    theirs = reference.select_state(rank, partner, Role.BUFFER, Phase.FORWARD)
    left, other_left = _find_buffers(candidate, rank, step - 1), _find_buffers(reference, rank, partner - 1)
    for owner, record in candidate.select_state(rank, step, Role.BUFFER, Phase.FORWARD).items():
        known = owner in theirs and owner in left and owner in other_left
        if known and is_equal(theirs[owner], other_left[owner]) and not is_equal(record, left[owner]):
            blame = Blame(owner[0], Site.PARAMETERS, Phase.FORWARD, 0, "buffer")
            yield make_row(record, blame, Status.FAIL, "structure", note=f"{owner[1]} {EDITED}")


def _find_buffers(side: Side, rank: int, step: int) -> dict[Owner, TensorRecord]:
    """Buffers at the end of a step: as they stood at its start, or as the last call left them."""
    found = dict(side.select_state(rank, step, Role.BUFFER, Phase.FORWARD))
    for node in side.select_nodes(rank, step):
        for path, record in node.buffers.items():
            moment, _, name = path.partition(".")
            if moment == "after" and (node.scope, name) in found:
                found[node.scope, name] = record
    return found


def _judge_states(reference: Side, candidate: Side, rank: int, step: int, partner: int) -> list[RecordResult]:
    ours, left = _select_states(candidate, rank, step, "before"), _select_states(candidate, rank, step - 1, "after")
    theirs = _select_states(reference, rank, partner, "before")
    other_left = _select_states(reference, rank, partner - 1, "after")
    calls = candidate.steps.get((rank, step), [])
    rows = []
    for owner, other in theirs.items():
        if owner not in left or owner not in other_left or not is_equal(other, other_left[owner]):
            continue
        record = ours.get(owner)
        if record is not None and is_equal(record, left[owner]):
            continue
        blame = Blame(owner[0], Site.OPTIMIZER, Phase.STEP, 0, "state")
        what = "is gone: cleared" if record is None else EDITED
        shown = other if record is None else record
        note = f"optimizer state {owner[1]} {what}"
        rows.append(
            make_row(shown, blame, Status.FAIL, "structure", note=note, order=calls[0].enter if calls else None)
        )
    return rows if calls else []


def _select_states(side: Side, rank: int, step: int, moment: str) -> dict[Owner, TensorRecord]:
    found = side.select_state(rank, step, Role.STATE, Phase.STEP)
    return {
        (scope, path[len(moment) + 1 :]): record
        for (scope, path), record in found.items()
        if path.startswith(f"{moment}.")
    }


def _judge_skipped(reference: Side, candidate: Side, rank: int, step: int, partner: int) -> list[RecordResult]:
    """The reference's optimizer steps and the candidate's does not, though it does elsewhere."""
    theirs = reference.select_state(rank, partner, Role.PARAMETER, Phase.STEP)
    stepped = candidate.select_state(rank, step, Role.PARAMETER, Phase.STEP)
    ever = any(place[0] == rank for place in candidate.steps)
    if stepped or not theirs or not ever:
        return []
    nodes = candidate.select_nodes(rank, step)
    ends = [node.call.exit for node in nodes]
    if any(node.call.error for node in nodes):
        return []
    rows = []
    for number, (owner, record) in enumerate(theirs.items()):
        blame = Blame(owner[0], Site.OPTIMIZER, Phase.STEP, 0, "optimizer")
        note = "not updated: the candidate's optimizer made no step here (an overflow that its loss scaler skipped?)"
        status = Status.FAIL if number == 0 else Status.MISSING
        rows.append(make_row(record, blame, status, "structure", note=note, order=max(ends, default=0) + 1))
    return rows
