"""Gradients as the optimizers saw them against what each rank's backward pass gave: what the reduction did.

Every rank's own gradient of a parameter is the sum of the shares of its calls. What the optimizer saw is a linear
combination of these; its coefficients name the fault: one's own alone (not reduced), a rank with none (left out), 1
where the others have 1/R (summed, not averaged), R (reduced twice). No second run is needed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import median

import numpy as np

from precision_align.comparison.collectives import judge_exchange
from precision_align.core.dtypes import Array, dtype_of
from precision_align.core.errors import DumpDamaged
from precision_align.core.records import TensorRecord
from precision_align.core.terms import Status, Tier
from precision_align.numerics.combinations import Combination, fit_combination
from precision_align.training.health.facts import Facts
from precision_align.training.health.families import Families
from precision_align.training.health.findings import Finding, Severity, Value
from precision_align.training.health.groups import Groups, find_mesh_group, is_shard
from precision_align.training.health.weights import Weights, read_weights

# Of a coefficient, relative: float32 rounding stays below 1e-4; 16-bit dtypes get four times their roundoff.
_SAME = 1e-3
_UNEQUAL = 0.01  # relative spread of one token's weight that counts as another loss


@dataclass(frozen=True)
class Fit:
    """One parameter's gradient on one rank. ``members``: the ranks that gave to it, those with bit-equal gradients
    (tensor parallelism) as one; ``counts``: of ranks behind each; ``own``: the position of this rank's."""

    name: str
    step: int
    rank: int
    members: tuple[tuple[int, ...], ...]
    own: int
    combination: Combination
    tolerance: float
    group: str

    @property
    def size(self) -> int:
        """How many different contributions there are."""
        return len(self.members)

    @property
    def is_own_alone(self) -> bool:
        """Whether nothing but this rank's gradient is in it."""
        return self.combination.lacking == [one for one in range(self.size) if one != self.own]


def check_reductions(
    facts: Facts, groups: Groups, families: Families, replicas: Sequence[Sequence[int]] | None = None
) -> Iterator[Finding]:
    """Name what reductions of gradients did wrong, for each step."""
    fits: dict[int, list[Fit]] = defaultdict(list)
    for fit in fit_gradients(facts, groups, families, replicas):
        fits[fit.step].append(fit)
    weights = read_weights(facts.dump) if fits else {}
    for _, members in sorted(fits.items()):
        yield from _check_step(members, weights, groups)


def fit_gradients(
    facts: Facts, groups: Groups, families: Families, replicas: Sequence[Sequence[int]] | None
) -> Iterator[Fit]:
    """A :class:`Fit` for each parameter, step and rank where the dump tells."""
    shares = _Shares(facts)
    for name, records in facts.gradients.items():
        for (step, rank), record in sorted(records.items()):
            peers = _find_peers(record, rank, facts.dump.ranks, replicas)
            if replicas is None:
                peers = next((part for part in families.split(name, peers) if rank in part), [])
            if len(peers) < 2 or record.tier != Tier.FULL or not _start_equal(facts, name, step, peers, record):
                continue
            given = shares.collect(name, step, peers, record)
            if given is None or len(given) < 2:
                continue
            result = _read(facts, record)
            combination = None if result is None else fit_combination([one for _, one in given], result)
            if combination is None:
                continue
            members = tuple(ranks for ranks, _ in given)
            own = next((index for index, ranks in enumerate(members) if rank in ranks), -1)
            tolerance = max(_SAME, 4 * dtype_of(record.dtype).roundoff)
            text = groups.describe(peers, record.extra.get("shard"))
            yield Fit(name, step, rank, members, own, combination, tolerance, text)


def _find_peers(
    record: TensorRecord, rank: int, ranks: Sequence[int], replicas: Sequence[Sequence[int]] | None
) -> list[int]:
    """The ranks whose gradients of a parameter belong together."""
    if is_shard(record):
        sharded = [i for i, kind in enumerate(record.extra["shard"]["placements"]) if "Shard" in str(kind)]
        return find_mesh_group(record, sharded[0]) if len(sharded) == 1 else []
    if replicas is None:
        return list(ranks)
    return next((list(group) for group in replicas if rank in group), [])


def _start_equal(facts: Facts, name: str, step: int, peers: Sequence[int], gradient: TensorRecord) -> bool:
    """Whether these ranks hold the same parameter: experts of one name on several ranks do not."""
    held = facts.before.get(name, {})
    digests = {held[step, peer].digest for peer in peers if (step, peer) in held}
    return is_shard(gradient) or len(digests) <= 1


class _Shares:
    """Each rank's own gradient of a parameter: the sum of its calls' shares, cut as the result is."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._names: dict[str, list[str]] = defaultdict(list)
        for first, others in facts.dump.info.parameters.items():
            self._names[first] += [first, *others]

    def collect(
        self, name: str, step: int, peers: Sequence[int], result: TensorRecord
    ) -> list[tuple[tuple[int, ...], Array]] | None:
        """(ranks, their gradient in float64), equal ones once; None where one is not recorded in full or is a shard."""
        found: dict[tuple[bytes, ...], tuple[list[int], list[TensorRecord]]] = {}
        for peer in peers:
            records = [
                record
                for one in self._names.get(name, [name])
                for record in self._facts.shares.get(one, {}).get((step, peer), ())
            ]
            if not records or any(record.tier != Tier.FULL or is_shard(record) for record in records):
                return None  # shards of tensor parallelism are no contributions to one sum
            digests = tuple(record.digest for record in records)
            found.setdefault(digests, ([], records))[0].append(peer)
        values = [(tuple(ranks), self._add(records, result)) for ranks, records in found.values()]
        return (
            None
            if any(one is None for _, one in values)
            else [(ranks, one) for ranks, one in values if one is not None]
        )

    def _add(self, records: Sequence[TensorRecord], result: TensorRecord) -> Array | None:
        total: Array | None = None
        for record in records:
            values = _read(self._facts, record)
            if values is None:
                return None
            total = values if total is None else total + values
        return None if total is None else cut_shard(total, result)


def cut_shard(whole: Array, result: TensorRecord) -> Array | None:
    """The part of a rank's whole gradient that its shard holds, cut as torch.chunk does; None where it does not fit."""
    if whole.shape == result.shape:
        return whole
    if whole.ndim != len(result.shape) or not is_shard(result):
        return None
    cut = [index for index, (one, other) in enumerate(zip(whole.shape, result.shape)) if one != other]
    shard = result.extra["shard"]
    along = [index for index, kind in enumerate(shard["placements"]) if str(kind) == f"Shard({cut[0]})"]
    if len(cut) != 1 or len(along) != 1:
        return None
    count = np.asarray(shard["mesh"]).shape[along[0]]
    size = -(-whole.shape[cut[0]] // count)
    start = size * int(shard["coordinate"][along[0]])
    piece = whole[(slice(None),) * cut[0] + (slice(start, start + size),)]
    return piece if piece.shape == result.shape else None


def _read(facts: Facts, record: TensorRecord) -> Array | None:
    try:
        return facts.dump.values(record.key).astype(np.float64)
    except (KeyError, DumpDamaged):
        return None


def _check_step(fits: Sequence[Fit], weights: Weights, groups: Groups) -> Iterator[Finding]:
    by_name: dict[str, list[Fit]] = defaultdict(list)
    for fit in fits:
        by_name[fit.name].append(fit)
    found = {name: _name_absence(members) or _name_weighting(members, weights) for name, members in by_name.items()}
    yield from _gather([finding for finding in found.values() if finding is not None], len(found))
    even = [fit for fit in fits if found[fit.name] is None and fit.combination.uniform is not None]
    yield from _check_scales(even, weights, groups)


def _gather(findings: Sequence[Finding], count: int) -> Sequence[Finding]:
    """One finding for all parameters where each has the same, else one a parameter."""
    alike = {(one.code, one.rank, one.values["group"]) for one in findings}
    return [replace(findings[0], place="")] if len(alike) == 1 and len(findings) == count > 1 else findings


def _name_absence(members: Sequence[Fit]) -> Finding | None:
    """Gradients that were not reduced at all, or without one rank."""
    first = members[0]
    values: dict[str, Value] = {"group": first.group, "size": sum(map(len, first.members))}
    alone = [fit for fit in members if fit.is_own_alone]
    if alone and len({fit.own for fit in alone}) >= len({fit.own for fit in members}):
        return Finding("not reduced", Severity.FAULT, first.step, first.rank, first.name, values=values)
    lacking = [position for fit in members if fit not in alone for position in fit.combination.lacking]
    if lacking:
        rank = members[0].members[min(set(lacking), key=lambda one: -lacking.count(one))][0]
        return Finding("rank left out", Severity.FAULT, first.step, rank, first.name, values=values)
    return None


def _name_weighting(members: Sequence[Fit], weights: Weights) -> Finding | None:
    """One rank's gradient that counts more or less than the others', where the tokens behind it do not ask for it."""
    fit = members[0]
    factors = fit.combination.coefficients
    counts = [len(ranks) for ranks in fit.members]
    if fit.combination.uniform is not None or _is_even([one / count for one, count in zip(factors, counts)], 0.02):
        return None
    each = _weigh_tokens(fit, weights)
    if each and _is_even([weight for _, weight in each], _UNEQUAL):
        return None
    usual = (
        median(factors)
        if len(factors) > 2
        else min((1.0, 1.0 / fit.size), key=lambda one: min(abs(c - one) for c in factors))
    )
    odd = max(range(fit.size), key=lambda one: abs(factors[one] - usual))
    values: dict[str, Value] = {"group": fit.group, "factor": factors[odd] / usual}
    return Finding("rank weighted", Severity.FAULT, fit.step, fit.members[odd][0], fit.name, values=values)


def _is_even(values: Sequence[float], tolerance: float) -> bool:
    return max(values) - min(values) <= tolerance * max(map(abs, values))


def _weigh_tokens(fit: Fit, weights: Weights) -> list[tuple[int, float]]:
    """(rank, what one token of one of its micro-batches counts in the reduced gradient); [] where that is unknown."""
    each = []
    for ranks, factor in zip(fit.members, fit.combination.coefficients):
        known = weights.get((fit.step, ranks[0]), [])
        if not known:
            return []
        each += [(ranks[0], factor * one.weight) for one in known]
    return each


def _check_scales(even: Sequence[Fit], weights: Weights, groups: Groups) -> Iterator[Finding]:
    """Coefficients that all contributions share: against the other parameters', against 1 and 1/R, by the tokens."""
    if not even:
        return
    by_group: dict[tuple[str, int], list[Fit]] = defaultdict(list)
    for fit in even:
        by_group[fit.group, fit.rank].append(fit)
    told: set[tuple[str, str]] = set()
    for (group, _), fits in sorted(by_group.items()):
        usual = median(_scale(fit) for fit in fits)
        odd = [fit for fit in fits if abs(_scale(fit) / usual - 1) > 0.02]
        for fit in odd if len(odd) < len(fits) else ():
            code = name_factor(_scale(fit) / usual, fit.size, fit.tolerance) or "scaled otherwise"
            values: dict[str, Value] = {"group": fit.group, "factor": _scale(fit) / usual, "size": fit.size}
            yield Finding(code, Severity.FAULT, fit.step, fit.rank, fit.name, values=values)
        usual_fit = min(fits, key=lambda fit: abs(_scale(fit) - usual))
        finding = _judge_usual(usual_fit, weights, groups)
        if finding is not None and (group, finding.code) not in told:
            told.add((group, finding.code))
            yield finding


def _scale(fit: Fit) -> float:
    return sum(fit.combination.coefficients) / fit.size


def name_factor(factor: float, size: int, tolerance: float) -> str:
    """What a gradient that is so many times what it should be has gone through; "" for a factor that says nothing."""
    if abs(factor / size - 1) <= tolerance * 4:
        return "summed not averaged"
    return "averaged not summed" if abs(factor * size - 1) <= tolerance * 4 else ""


def _judge_usual(fit: Fit, weights: Weights, groups: Groups) -> Finding | None:
    """The factor of most parameters: R and 1/R^2 are never meant; 1 or 1/R is right by how the loss was divided."""
    scale, size = _scale(fit), fit.size
    values: dict[str, Value] = {"group": fit.group, "factor": scale, "size": size}
    if abs(scale / size - 1) <= fit.tolerance:
        return Finding("reduced twice", Severity.FAULT, fit.step, fit.rank, values=values)
    if abs(scale * size * size - 1) <= fit.tolerance:
        return Finding("averaged twice", Severity.FAULT, fit.step, fit.rank, values=values)
    each = _weigh_tokens(fit, weights)
    if not each:
        return None
    if not _is_even([weight for _, weight in each], _UNEQUAL):
        rank, most = max(each, key=lambda one: one[1])
        least = min(weight for _, weight in each)
        return Finding("mean of means", Severity.FAULT, fit.step, rank, values={**values, "factor": most / least})
    tokens = sum(one.tokens for ranks in fit.members for one in weights[fit.step, ranks[0]])
    code = name_factor(each[0][1] * tokens, size, fit.tolerance)
    if code == "summed not averaged" and _repeats(groups, fit.step):
        code = "reduced twice"
    values["factor"] = each[0][1] * tokens
    return Finding(code, Severity.FAULT, fit.step, fit.rank, values=values) if code else None


def _repeats(groups: Groups, step: int) -> bool:
    """Whether a recorded sum of this step added up what was equal on all its ranks: the result of a sum before it."""
    for exchange in groups.exchanges:
        if exchange.step != step or exchange.reduction != "sum" or exchange.kind != "all_reduce":
            continue
        given = {share.inputs[0].digest for share in exchange.shares.values() if share.inputs}
        sizes = [int(np.prod(share.inputs[0].shape)) for share in exchange.shares.values() if share.inputs]
        if len(exchange.shares) > 1 and len(given) == 1 and max(sizes, default=0) > 1:
            return True
    return False


def check_collectives(groups: Groups, facts: Facts) -> Iterator[Finding]:
    """Collectives whose outputs are not what their inputs make."""
    for exchange in groups.exchanges:
        judged = judge_exchange(facts.dump, exchange)
        if judged.status == Status.FAIL:
            values: dict[str, Value] = {
                "kind": exchange.kind,
                "group": groups.describe(exchange.ranks),
                "note": judged.note,
                "record": "" if judged.record is None else str(judged.record.key),
            }
            place = exchange.scope or f"{exchange.kind} ({exchange.first.call.modes['phase']})"
            yield Finding("collective", Severity.FAULT, exchange.step, judged.rank, place, values=values)
