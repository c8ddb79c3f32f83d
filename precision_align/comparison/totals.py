"""Whole gradients of parameters: what the optimizer sees, against what the modules' calls contributed.

A call's share is judged by replay. What happens to the sum of all shares (a use of the weight outside its own module,
clipping, unscaling, accumulation, a reduction over ranks) is nobody's call: it is judged by comparing the relation of
total and shares on both sides, which is free of the error that the shares carry.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping

import numpy as np

from precision_align.alignment.side import Owner, Side
from precision_align.comparison.backward import read_loss_scales
from precision_align.comparison.raw import Gap, RawComparer, is_equal, read_words
from precision_align.comparison.replaying import find_tied
from precision_align.comparison.rows import Blame, make_row
from precision_align.core.dtypes import Array, dtype_of
from precision_align.core.errors import DumpError
from precision_align.core.records import TensorRecord
from precision_align.core.results import OUT_OF_TIME, Limit, RecordResult
from precision_align.core.terms import Phase, Role, Site, Status
from precision_align.numerics.relations import Relation, relate_to_sum

# Roundings of a sum of a few shares, in units of the largest term.
SUM_UNITS = 16.0
# Clipping divides by a norm over all gradients, which carries their propagated differences. It leaves the same norm on
# both sides, though; a constant factor is the same itself. Neither may be further off than this: what the roundings of
# 16-bit gradients add up to in a norm.
FACTOR_SLACK = 0.01
# But it divides all of them by the same: one that is scaled otherwise than the rest is a fault. Fitted over all values
# of a gradient, a factor is known to better than this and a few roundings of the dtype.
ALIKE = 1e-3
ALIKE_UNITS = 4.0


class TotalJudge:
    """Judges the totals of paired steps."""

    def __init__(self, reference: Side | None, candidate: Side, raw: RawComparer) -> None:
        self._reference = reference
        self._candidate = candidate
        self._raw = raw

    def judge(self, rank: int, step: int, partner: int | None) -> list[RecordResult]:
        """Rows for every parameter's whole gradient."""
        ours = _find_totals(self._candidate, rank, step)
        if not ours:
            return []
        reference = self._reference if partner is not None else None
        theirs = _find_totals(reference, rank, partner) if reference is not None and partner is not None else {}
        shares = _collect_shares(self._candidate, rank, step)
        other_shares = {} if reference is None or partner is None else _collect_shares(reference, rank, partner)
        relations: dict[Owner, tuple[Relation | None, Relation | None]] = {}
        if self._raw.is_out_of_time:
            return [
                _row_in_time(record, owner, self._raw.gap(record, theirs.get(owner))) for owner, record in ours.items()
            ]
        for owner, record in ours.items():
            other = theirs.get(owner)
            gap = self._raw.gap(record, other)
            relation = _relate(self._candidate, record, shares.get(owner, []), _is_finite(gap, "actual"))
            expected = None
            if other is not None and reference is not None:
                expected = _relate(reference, other, other_shares.get(owner, []), _is_finite(gap, "expected"))
            if other is not None and bool(shares.get(owner)) != bool(other_shares.get(owner)):
                relation = expected = None  # the module itself is not called on one side: its code was replaced
            relations[owner] = relation, expected
        ratio = self._find_scale_ratio(step, partner)
        common = _find_common_factor(relations.values()) * ratio
        off = abs(common - 1)
        if off and reference is not None:
            off = min(off, _compare_norms(self._candidate, ours, reference, theirs))
        rows = []
        for owner, record in ours.items():
            gap = self._raw.gap(record, theirs.get(owner))
            rows.append(_judge_total(record, owner, gap, *relations[owner], owner in theirs, common, off, ratio))
        order = max(record.order for record in ours.values())
        known = {**ours, **shares}
        lost = [(owner, record) for owner, record in theirs.items() if owner not in known]
        absent = {owner for owner, _ in lost if self._candidate.lacks_module(rank, step, owner[0], theirs)}
        return rows + [_row_lacking(record, owner, order, owner in absent) for owner, record in lost]

    def _find_scale_ratio(self, step: int, partner: int | None) -> float:
        """How much larger the candidate's loss scale is: its shares carry it, what the optimizer sees does not."""
        if self._reference is None or partner is None:
            return 1.0
        ours = read_loss_scales(self._candidate).get(step)
        theirs = read_loss_scales(self._reference).get(partner)
        return ours / theirs if ours and theirs else 1.0


def _find_totals(side: Side, rank: int, step: int) -> Mapping[Owner, TensorRecord]:
    """As the optimizer saw them, else as they stood when the backward pass ended."""
    found = side.select_state(rank, step, Role.GRADIENT, Phase.STEP)
    return found or side.select_state(rank, step, Role.GRADIENT, Phase.BACKWARD)


def _collect_shares(side: Side, rank: int, step: int) -> dict[Owner, list[TensorRecord]]:
    """By the name that the whole gradient has: a tied parameter's uses count together, whichever module they are in."""
    firsts = find_tied(side)
    shares: dict[Owner, list[TensorRecord]] = defaultdict(list)
    for node in side.select_nodes(rank, step):
        for path, record in node.gradients.items():
            kind, _, name = path.partition(".")
            if kind == "parameter":
                owner = node.scope, name
                shares[firsts.get(owner, owner)].append(record)
    return shares


def find_expected(candidate: Side, at: tuple[int, int], reference: Side, partner: int, owner: Owner) -> Array | None:
    """What a whole gradient should be, float64: its calls' shares, scaled as the reference's total is; None: unknown.

    ``at``: the candidate's rank and step; ``partner``: the reference's step.
    """
    shares = _collect_shares(candidate, *at).get(owner, [])
    other = _find_totals(reference, at[0], partner).get(owner)
    if other is None or not shares:
        return None
    relation = _relate(reference, other, _collect_shares(reference, at[0], partner).get(owner, []))
    if relation is None or relation.factor is None:
        return None
    parts = [candidate.dump.values(share.key).astype(np.float64) for share in shares]
    return np.asarray(sum(parts[1:], parts[0]) * relation.factor)


def _is_finite(gap: Gap, side: str) -> bool | None:
    """Whether all values of a total are finite, as far as its gap says; of one that is bit-equal to the other side's
    nobody will ask.
    """
    if gap.how != "payload":
        return True if gap.equal else None
    return not any(gap.metrics.get(f"raw_{kind}_{side}") for kind in ("nan", "inf"))


def _relate(side: Side, total: TensorRecord, shares: list[TensorRecord], finite: bool | None = None) -> Relation | None:
    """None where something is not stored. ``finite``: whether all values of the total are, where that is known."""
    known = _relate_by_summary(total, shares, finite)
    if known is not None:
        return known
    if any(share.shape != total.shape for share in shares):
        return None
    try:
        words, *parts = [(read_words(side.dump, record), dtype_of(record.dtype)) for record in (total, *shares)]
    except (KeyError, DumpError):
        return None
    return relate_to_sum(words, parts, SUM_UNITS * dtype_of(total.dtype).roundoff)


def _relate_by_summary(total: TensorRecord, shares: list[TensorRecord], finite: bool | None) -> Relation | None:
    """What hash and statistics alone say, so that nothing has to be read: of one share, or of none."""
    if len(shares) > 1 or (shares and not is_equal(total, shares[0])):
        return None
    if finite is None:
        known = total.statistics
        finite = known is not None and not known.nan + known.inf
    if not finite:
        return None
    return Relation(True, 1.0) if shares or total.is_all_zero else Relation(False, None)


def _judge_total(
    record: TensorRecord,
    owner: Owner,
    gap: Gap,
    relation: Relation | None,
    expected: Relation | None,
    has_partner: bool,
    common: float,
    off: float,
    ratio: float,
) -> RecordResult:
    blame = Blame(owner[0].rpartition(".")[0], Site.INLINE, Phase.BACKWARD, 0, "gradient")
    metrics = dict(gap.metrics)
    if gap.equal:
        return make_row(record, blame, Status.PASS, "raw", note="bit-equal to the reference")
    if relation is None or (has_partner and expected is None):
        status = Status.PASS if gap.close else Status.INCONCLUSIVE
        return make_row(
            record, blame, status, "raw" if gap.close else "", metrics=metrics, note="nothing to hold it against"
        )
    if expected is None and not relation.is_sum:
        note = "more than its own module's calls contribute, and no reference shows what is right"
        return make_row(record, blame, Status.INCONCLUSIVE, "", metrics=metrics, note=note)
    wanted = expected or Relation(True, 1.0)
    if relation.factor is not None:
        metrics["total_over_shares"] = relation.factor
    if relation.is_sum and wanted.is_sum and off <= FACTOR_SLACK:
        status = Status.PASS if gap.close or not gap.known else Status.PROPAGATED
        return make_row(record, blame, status, "sum", metrics=metrics, note="the sum of its calls' shares")
    if relation.factor is not None and wanted.factor is not None:
        edited = Blame(owner[0], Site.OPTIMIZER, Phase.STEP, 0, "gradient")
        return _judge_factor(record, edited, gap, relation.factor * ratio, wanted.factor, common, off, metrics)
    if (relation.factor is None) != (wanted.factor is None) and not gap.close:
        note = (
            f"the whole gradient of {owner[1]} is {_say(relation)} on the candidate and {_say(wanted)} on the "
            "reference: a use of the weight outside its own module is lost, doubled or added, or values are changed "
            "one by one (clipping by value, a hook)"
        )
        return make_row(record, blame, Status.FAIL, "sum", metrics=metrics, note=note)
    if gap.close:
        return make_row(record, blame, Status.PASS, "raw", metrics=metrics, note="within the raw limit")
    note = "neither the sum of its calls' shares nor close to the reference's"
    return make_row(record, blame, Status.INCONCLUSIVE, "", metrics=metrics, note=note)


def _find_common_factor(relations: Iterable[tuple[Relation | None, Relation | None]]) -> float:
    """By how much more the candidate scales its gradients than the reference, as most of them say."""
    ratios = [
        ours.factor / theirs.factor
        for ours, theirs in relations
        if ours is not None and theirs is not None and ours.factor and theirs.factor
    ]
    return float(np.median(ratios)) if ratios else 1.0


def _compare_norms(
    candidate: Side, ours: Mapping[Owner, TensorRecord], reference: Side, theirs: Mapping[Owner, TensorRecord]
) -> float:
    """How far the norm over all gradients is from the reference's, relative: clipping leaves the same one."""
    common = [owner for owner in ours if owner in theirs]
    norms = [
        math.hypot(*(_norm(side, found[owner]) for owner in common))
        for side, found in ((candidate, ours), (reference, theirs))
    ]
    return abs(norms[0] / norms[1] - 1) if norms[1] > 0 else math.inf


def _norm(side: Side, record: TensorRecord) -> float:
    """From the statistics, else from the values; infinite where neither is stored."""
    if record.statistics is not None:
        return record.statistics.l2
    try:
        return float(np.linalg.norm(side.dump.values(record.key).astype(np.float64)))
    except (KeyError, DumpError):
        return math.inf


def _judge_factor(
    record: TensorRecord,
    blame: Blame,
    gap: Gap,
    factor: float,
    wanted: float,
    common: float,
    whole: float,
    metrics: dict[str, float],
) -> RecordResult:
    alike = max(ALIKE, ALIKE_UNITS * dtype_of(record.dtype).roundoff)
    own = abs(factor / (common * wanted) - 1) if common * wanted else math.inf
    metrics = {**metrics, "factor_off": max(own, whole)}
    allowed = FACTOR_SLACK if whole > own else alike
    limit = Limit("factor_off", allowed, "all gradients are scaled alike, and as in the reference")
    if own <= alike and whole <= FACTOR_SLACK:
        status = Status.PASS if gap.close or not gap.known else Status.PROPAGATED
        note = "the same multiple of its calls' shares as in the reference"
        return make_row(record, blame, status, "sum", metrics=metrics, limit=limit, note=note)
    note = (
        "changed between the backward pass and the optimizer's step (clipping, unscaling, a hook): "
        f"{factor:.6g} times what its calls sent, {wanted:.6g} times in the reference"
    )
    return make_row(record, blame, Status.FAIL, "sum", metrics=metrics, limit=limit, note=note)


def _say(relation: Relation) -> str:
    if relation.is_sum:
        return "the sum of its module's shares"
    return (
        "no multiple of its module's shares" if relation.factor is None else f"{relation.factor:.4g} times the shares"
    )


def _row_lacking(record: TensorRecord, owner: Owner, order: int, is_absent: bool) -> RecordResult:
    """``is_absent``: the candidate has no such module, under that name or another: what it does not do is seen where
    its results are missing.
    """
    blame = Blame(owner[0].rpartition(".")[0], Site.INLINE, Phase.BACKWARD, 0, "gradient")
    if is_absent:
        return make_row(
            record, blame, Status.MISSING, "structure", note="the candidate has no such module", order=order
        )
    note = f"no gradient reached {owner[1]} of {owner[0] or 'the root'} on the candidate"
    return make_row(record, blame, Status.FAIL, "structure", note=note, order=order)


def _row_in_time(record: TensorRecord, owner: Owner, gap: Gap) -> RecordResult:
    """What hashes say of it when nothing may be read any more."""
    blame = Blame(owner[0].rpartition(".")[0], Site.INLINE, Phase.BACKWARD, 0, "gradient")
    if gap.equal:
        return make_row(record, blame, Status.PASS, "raw", note="bit-equal to the reference")
    return make_row(record, blame, Status.INCONCLUSIVE, "", note=OUT_OF_TIME)
