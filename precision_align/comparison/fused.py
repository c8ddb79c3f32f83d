"""The gradients of a fused module's inputs: sums over its parts, held against the sum of what the parts' code gives."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from precision_align.alignment.fitting import Fitted
from precision_align.alignment.refitting import WHOLE
from precision_align.alignment.side import Node
from precision_align.comparison.replaying import ReplayProvider
from precision_align.comparison.rows import blame_call, make_row
from precision_align.core.dtypes import Array
from precision_align.core.records import TensorRecord
from precision_align.core.results import Limit, RecordResult
from precision_align.core.terms import Phase, Site, Status
from precision_align.numerics.limits import raw_limit
from precision_align.numerics.metrics import measure


def judge_fused(fitted: Fitted, replay: ReplayProvider) -> list[RecordResult]:
    """Rows for what no part has alone, under the fused module's own name."""
    rows = []
    for fusion in fitted.fusions:
        if not fusion.whole_is_candidate:
            continue
        for unit in fitted.side.units:
            calls = [fitted.side.by_scope.get((unit, part), []) for part in fusion.parts]
            for members in zip(*calls):
                rows += _judge_call(fitted, replay, fusion.whole, members)
    return rows


def _judge_call(fitted: Fitted, replay: ReplayProvider, scope: str, members: Sequence[Node]) -> list[RecordResult]:
    first = members[0]
    blame = blame_call(first.call, scope, first.number, Site.MODULE, Phase.BACKWARD)
    rows = []
    for path, record in first.gradients.items():
        if not record.extra.get(WHOLE):
            continue
        shares = [replay.compute(member, -1, path, True) for member in members]
        actual = _read(fitted, record)
        if actual is None or any(share is None or share[0].shape != actual.shape for share in shares):
            note = "the sum over the parts of a fused module, whose shares cannot be replayed"
            rows.append(make_row(record, blame, Status.INCONCLUSIVE, "", note=note))
            continue
        golden = np.sum([share[0] for share in shares if share is not None], axis=0)
        found = measure(actual, golden)
        allowed = raw_limit(record.dtype)
        limit = Limit("over_max", allowed, f"raw limit of {record.dtype}, against the float64 replay of the parts")
        metrics = {"over_max": found.over_max, "rel_l2": found.rel_l2, "max_abs": found.max_abs}
        right = found.nonfinite == 0 and found.over_max <= allowed
        note = "the sum of what its parts' code gives" if right else "not the sum of what its parts' code gives"
        status = Status.PASS if right else Status.FAIL
        rows.append(make_row(record, blame, status, "replay", metrics=metrics, limit=limit, note=note))
    return rows


def _read(fitted: Fitted, record: TensorRecord) -> Array | None:
    try:
        return fitted.side.dump.values(record.key).astype(np.float64)
    except KeyError:
        return None
