"""How small an error would have been seen in what passed: of each record, of each module, of all.

A record that is bit-equal, or that an exact rule judged, hides nothing. For all others the tests that were applied say
from which relative error on one of them would have fired (:mod:`precision_align.numerics.detectability` for the local
test; the raw limit for raw evidence; the stated power for sketches, statistics and samples).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from precision_align.core.results import DETECTABLE, RecordResult
from precision_align.core.terms import Status

# The share of the records that a size stands for: the few worst ones are named instead of speaking for all.
SHARE = 0.95
_PASSED = (Status.PASS, Status.WARN, Status.PROPAGATED)
_LOCAL = ("hash", "replay", "sampled", "certificate", "replay+certificate", "replay+forced")
_WEAK = ("raw", "forced", "sketch", "statistics", "sample")
TESTS = {
    "z": "element-wise bound",
    "rho": "RMS ratio",
    "bias": "mean shift",
    "raw": "raw limit",
    "forced": "raw limit",
    "sketch": "sketch",
    "statistics": "statistics",
    "sample": "sample",
}


@dataclass(frozen=True)
class Detectability:
    """Of one module, or of all (scope None): ``records`` that passed and ``exact``, those among them that hide nothing.

    ``error``: the relative error that would have been seen in 95 % of the others; ``worst``: in the worst of them,
    ``place``: its scope, ``test``: the one that would have fired there first. Both are 0 where all are exact.
    """

    scope: str | None
    records: int
    exact: int
    error: float
    worst: float
    place: str = ""
    test: str = ""


def find_detectable(row: RecordResult) -> tuple[float, str] | None:
    """(relative error, the test that sees it) of a record that passed; None where nothing is known."""
    if row.status not in _PASSED:
        return None
    if row.evidence in _LOCAL:
        known = {name[len(DETECTABLE) :]: value for name, value in row.metrics.items() if name.startswith(DETECTABLE)}
        if not known:
            return (0.0, "") if _is_exact(row) else None
        test = min(known, key=lambda name: known[name])
        return known[test], test
    if row.evidence in _WEAK:
        if not row.metrics:
            return 0.0, ""
        limit = row.limit.value if row.limit is not None else math.inf
        return row.metrics.get("raw_power", limit), row.evidence
    return None


def _is_exact(row: RecordResult) -> bool:
    """No bound was needed: bit-equal to the replay or the reference, or an operator that moves and selects."""
    return row.status == Status.PASS or (row.status == Status.PROPAGATED and "z" not in row.metrics)


def measure_detectability(rows: Iterable[RecordResult]) -> tuple[Detectability, list[Detectability]]:
    """(of all records, of each module in the order of its first record)."""
    found: dict[str, list[tuple[float, str, str]]] = defaultdict(list)
    for row in rows:
        known = find_detectable(row)
        if known is not None:
            found[row.scope].append((*known, row.scope))
    everything = [one for members in found.values() for one in members]
    return _summarize(None, everything), [_summarize(scope, members) for scope, members in found.items()]


def _summarize(scope: str | None, members: Sequence[tuple[float, str, str]]) -> Detectability:
    others = sorted(one for one in members if one[0] > 0)
    if not others:
        return Detectability(scope, len(members), len(members), 0.0, 0.0)
    most = others[min(len(others) - 1, math.ceil(SHARE * len(others)) - 1)][0]
    worst, test, place = others[-1]
    return Detectability(scope, len(members), len(members) - len(others), most, worst, place, test)
