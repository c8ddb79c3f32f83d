"""The collectives of one run, matched across its ranks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from precision_align.core.records import COLLECTIVE_SCOPE, Call, TensorRecord
from precision_align.core.terms import Role, Source
from precision_align.storage.base import Dump

_PAIRED = ("send", "recv")


@dataclass(frozen=True)
class Share:
    """One rank's part in a collective: what it gave and what it got, in the order of the lists it passed."""

    call: Call
    inputs: Sequence[TensorRecord]
    outputs: Sequence[TensorRecord]


@dataclass(frozen=True)
class Exchange:
    """One collective. ``ranks``: of its group, in the group's order; ``shares``: by rank, those that the dump has;
    ``root``: a position in ``ranks`` where the kind has one; ``group``: the group's name, "" where it has none."""

    kind: str
    reduction: str
    step: int
    ranks: tuple[int, ...]
    group: str
    root: int | None
    shares: Mapping[int, Share]

    @property
    def first(self) -> Share:
        """That of the lowest rank."""
        return self.shares[min(self.shares)]

    @property
    def scope(self) -> str:
        """The module in whose call it ran, "" outside."""
        return self.first.call.scope[len(COLLECTIVE_SCOPE) :]

    @property
    def missing(self) -> list[int]:
        """Ranks of the group that the dump has not got it from."""
        return [rank for rank in self.ranks if rank not in self.shares]


def match_exchanges(dump: Dump) -> list[Exchange]:
    """All collectives of a dump in the order of the lowest rank that took part; those of unknown groups are left out.

    The n-th collective of a group in a step is the same on all its ranks: they would hang otherwise.
    """
    calls = [call for call in dump.calls if call.scope.startswith(COLLECTIVE_SCOPE)]
    if not calls:
        return []
    tensors = _file_tensors(dump)
    found: dict[tuple[object, ...], dict[int, Share]] = defaultdict(dict)
    for call in calls:
        described = call.modes["collective"]
        if described["ranks"]:
            place = call.rank, call.step, call.identity
            share = Share(call, tensors.get((*place, Role.INPUT), ()), tensors.get((*place, Role.OUTPUT), ()))
            found[_identify(call)][call.rank] = share
    exchanges = [_join(shares) for shares in found.values()]
    return sorted(exchanges, key=lambda one: (one.step, one.first.call.enter, one.first.call.rank))


def _file_tensors(dump: Dump) -> dict[tuple[int, int, int, Role], list[TensorRecord]]:
    filed: dict[tuple[int, int, int, Role], list[TensorRecord]] = defaultdict(list)
    for record in dump.records:
        if record.key.source == Source.COLLECTIVE:
            key = record.key
            filed[key.rank, key.step, int(record.extra["collective"]), key.role].append(record)
    return filed


def _identify(call: Call) -> tuple[object, ...]:
    described = call.modes["collective"]
    group = tuple(described["ranks"]), described["group"]
    if call.kind not in _PAIRED:
        return (*group, call.step, described["sequence"])
    own, other = call.rank, _find_other(call)
    ends = (own, other) if call.kind == "send" else (other, own)
    return (*group, call.step, described["sequence"], "pair", *ends)


def _find_other(call: Call) -> int | None:
    """The rank at the other end of a send or a receive; None of a receive from any."""
    described = call.modes["collective"]
    return None if described["root"] is None else int(described["ranks"][described["root"]])


def _join(shares: dict[int, Share]) -> Exchange:
    call = shares[min(shares)].call
    described = call.modes["collective"]
    paired = call.kind in _PAIRED
    ranks = tuple(described["ranks"])
    if paired:  # the two ends; the other one may not be in the dump
        other = _find_other(call)
        ranks = tuple(dict.fromkeys([*sorted(shares), *([] if other is None else [other])]))
    return Exchange(
        kind="send" if paired else call.kind,
        reduction=described["reduce_op"],
        step=call.step,
        ranks=ranks,
        group=described["group"],
        root=None if paired or described["root"] is None else int(described["root"]),
        shares=shares,
    )


def list_groups(exchanges: Sequence[Exchange]) -> dict[frozenset[int], str]:
    """Ranks -> the name of the group that they are, of those that have one."""
    named = {frozenset(one.ranks): one.group for one in exchanges if one.group and one.kind != "send"}
    return dict(sorted(named.items(), key=lambda item: sorted(item[0])))


def iterate_outputs(exchange: Exchange) -> Iterator[tuple[int, int, TensorRecord]]:
    """(rank, position in its list, record) of everything that came out."""
    for rank in exchange.ranks:
        share = exchange.shares.get(rank)
        for index, record in enumerate(share.outputs if share is not None else ()):
            yield rank, index, record
