"""Ranks that hold different modules as one run of the whole model: stages of a pipeline, chunks, experts.

Each rank's scopes get the whole model's names, its micro-batches are numbered anew by the calls of what it was given,
and the calls of all ranks become one tree in the order of the reference. Tensors stay what they are, each of its rank:
putting shards together is the business of :mod:`~precision_align.alignment.merging`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from precision_align.alignment.layouts import Layouts
from precision_align.alignment.side import Side, read_arguments
from precision_align.alignment.stages import Renaming, find_renamings
from precision_align.alignment.trees import BEHIND, Event, Forest, Name, Placed
from precision_align.core.dtypes import Array
from precision_align.core.keys import Key
from precision_align.core.records import COLLECTIVE_SCOPE, OPTIMIZER_SCOPE, Call, RunInfo, TensorRecord
from precision_align.core.terms import Phase, Role, Source
from precision_align.core.trees import flatten
from precision_align.storage.base import Dump
from precision_align.storage.views import ChangedDump

_STATE = (Source.PARAMETERS, Source.OPTIMIZER)


def join_ranks(dump: Dump, reference: Dump, layouts: Layouts) -> Dump:
    """The dump with its modules under the whole model's names; as it is where all ranks hold the same modules."""
    side, theirs = Side(dump), Side(reference)
    renamings, found = find_renamings(dump, side.names, reference, theirs.names, layouts)
    called: dict[int, set[str | None]] = defaultdict(set)
    for call in side.calls:
        called[call.rank].add(side.names[call.scope])
    if not any(found.values()) and len(set(map(frozenset, called.values()))) < 2:
        return dump
    positions: dict[str, int] = {}
    for node in sorted(theirs.nodes, key=lambda node: node.call.enter):
        positions.setdefault(node.scope, len(positions))
    return JoinedDump(dump, side, renamings, found, positions)


class JoinedDump(ChangedDump):
    """Implements :class:`~precision_align.storage.base.Dump`; calls of modules and optimizers are the lowest rank's.

    ``found``: rank -> by what its names were told, "" where they stay; ``positions``: scope -> place in the reference.
    """

    def __init__(
        self,
        dump: Dump,
        side: Side,
        renamings: Mapping[int, Renaming],
        found: Mapping[int, str],
        positions: Mapping[str, int],
    ) -> None:
        super().__init__(dump)
        self._names, self._renamings, self._found = side.names, renamings, found
        self._forest = Forest(side.calls, self._rename, positions)
        self._losses: dict[tuple[int, int], int] = defaultdict(int)
        placed = [one for record in dump.records for one in self._place(record)]
        events = {*(event for *_, event in placed), *self._forest.events}
        numbers = {event: number for number, event in enumerate(sorted(events))}
        kept = [(replace(record, key=key, order=numbers[event]), record.key) for key, record, event in placed]
        kept.sort(key=lambda pair: (pair[0].key.rank, pair[0].key.step, pair[0].order))
        kept += [(record, record.key) for record in dump.records if record.key.source == Source.COLLECTIVE]
        self._records, self._originals = [record for record, _ in kept], [key for _, key in kept]
        self._positions = {str(record.key): index for index, record in enumerate(self._records)}
        self._calls = self._forest.make_calls(numbers, min(dump.ranks))
        steps = [call for call in dump.calls if call.scope.startswith(OPTIMIZER_SCOPE)]
        self._calls += self._join_steps(steps, numbers)
        self._calls += [call for call in dump.calls if call.scope.startswith(COLLECTIVE_SCOPE)]

    @property
    def info(self) -> RunInfo:
        """Of the lowest rank, with the modules of all."""
        first = self._dump.info
        return replace(
            first,
            modules={name: kind for info in self.infos for name, kind in info.modules.items()},
            parameters={
                self._rename_tensor(info.rank, name): [self._rename_tensor(info.rank, other) for other in others]
                for info in self._dump.infos
                for name, others in info.parameters.items()
            },
            aliases={},
        )

    @property
    def infos(self) -> Sequence[RunInfo]:
        """One a rank, its modules under the whole model's names."""
        return [
            replace(info, modules={self._rename(info.rank, raw) or "": kind for raw, kind in info.modules.items()})
            for info in self._dump.infos
        ]

    @property
    def notes(self) -> Sequence[str]:
        """What the dump lacks, and how the ranks were joined."""
        return [*self._dump.notes, *self._describe()]

    def stored_words(self, position: int) -> Array | None:
        """The payload at a position, or None."""
        try:
            return self._dump.payload(self._originals[position])
        except KeyError:
            return None

    def stored_sketch(self, position: int) -> Array | None:
        """The sketch at a position, or None."""
        return self._dump.sketch(self._originals[position])

    def stored_sample(self, position: int) -> Array | None:
        """The sample at a position, or None."""
        return self._dump.sample(self._originals[position])

    def _rename(self, rank: int, scope: str) -> str | None:
        aligned = self._names.get(scope, scope)
        return None if aligned is None else self._renamings[rank].apply(aligned)

    def _rename_tensor(self, rank: int, name: str) -> str:
        scope, _, local = name.rpartition(".")
        renamed = self._rename(rank, scope)
        return name if renamed is None else f"{renamed}.{local}" if renamed else local

    def _place(self, record: TensorRecord) -> Iterator[tuple[Key, TensorRecord, Event]]:
        """The key in the whole, and when it came; nothing for what lies between two stages, and for other sources."""
        key = record.key
        last = self._forest.batches[key.rank, key.step] - 1
        if key.source in _STATE:
            scope = self._rename(key.rank, key.scope)
            part = 0 if key.phase == Phase.FORWARD else 2
            if scope is not None:
                micro = last if key.source == Source.OPTIMIZER else min(key.micro, last)
                key = replace(key, scope=scope, micro=max(0, micro))
                yield key, record, (key.step, part, 0, 0, 0, record.order, key.rank)
        elif key.role == Role.LOSS:
            micro = self._losses[key.rank, key.step]
            self._losses[key.rank, key.step] += 1
            key = replace(key, micro=min(micro, max(last, 0)), ordinal=max(0, micro - last))
            yield key, record, (key.step, 1, key.micro, 0, BEHIND, record.order, key.rank)
        elif key.source == Source.MODULE:
            placed = self._forest.find(key)
            if placed is not None and not self._is_inside(placed, key):
                _, batch, scope, number, _ = placed.name
                key = replace(key, micro=batch, scope=scope, call=number)
                late = key.phase != Phase.FORWARD
                place = -placed.place if late else placed.place
                yield key, record, (key.step, 1, batch, int(late), place, record.order, key.rank)

    def _is_inside(self, placed: Placed, key: Key) -> bool:
        """Whether a tensor enters or leaves a part of a call within the whole: what one stage sends to the next."""
        first, last = self._forest.find_ends(placed.name)
        side = key.path.partition(".")[0] if key.role == Role.GRADIENT else key.role
        return (side == "input" and placed.place != first) or (side == "output" and placed.place != last)

    def _join_steps(self, calls: Sequence[Call], numbers: Mapping[Event, int]) -> list[Call]:
        """The optimizers' steps of all ranks, each as one."""
        groups: dict[tuple[int, str, int], list[Call]] = defaultdict(list)
        for call in calls:
            groups[call.step, call.scope, call.call].append(call)
        end = len(numbers)
        joined = []
        for index, members in enumerate(groups.values()):
            first = min(members, key=lambda call: call.rank)
            held: dict[str, Any] = {"groups": [], "state": {}}
            for call in members:
                self._add_arguments(held, read_arguments(call), call.rank)
            enter = min((numbers[event] for event in numbers if event[:2] == (first.step, 2)), default=end)
            joined.append(
                replace(
                    first,
                    rank=min(self._dump.ranks),
                    micro=max(0, self._forest.batches[first.rank, first.step] - 1),
                    identity=end + index,
                    enter=enter,
                    exit=end + index,
                    arguments=flatten(held, lambda value: False)[0],
                )
            )
        return joined

    def _add_arguments(self, held: dict[str, Any], arguments: Mapping[str, Any], rank: int) -> None:
        for number, group in enumerate(arguments.get("groups", [])):
            names = [self._rename_tensor(rank, name) for name in group.get("parameters", [])]
            if number == len(held["groups"]):
                held["groups"].append({**group, "parameters": []})
            present = held["groups"][number]["parameters"]
            present += [name for name in names if name not in present]
        for name, scalars in arguments.get("state", {}).items():
            held["state"].setdefault(self._rename_tensor(rank, name), scalars)

    def _describe(self) -> list[str]:
        notes = []
        told = sorted({how for how in self._found.values() if how})
        if told:
            ranks = ", ".join(str(rank) for rank, how in self._found.items() if how)
            notes.append(f"modules of ranks {ranks} go under the whole model's names, by {' and '.join(told)}")
        equal, unequal = self._compare_boundaries()
        if equal or unequal:
            where = f"; not equal: {', '.join(unequal[:3])}" if unequal else ""
            notes.append(f"{equal} of {equal + len(unequal)} tensors between stages arrive as they were sent{where}")
        return notes

    def _compare_boundaries(self) -> tuple[int, list[str]]:
        """What each stage got against what those before it made: how many are equal, and the others."""
        sent: dict[Name, set[bytes]] = defaultdict(set)
        got: list[tuple[Placed, TensorRecord]] = []
        for record in self._dump.records:
            key = record.key
            placed = self._forest.find(key) if key.source == Source.MODULE and key.phase == Phase.FORWARD else None
            if placed is None or not record.digest or not self._is_inside(placed, key):
                continue
            if key.role == Role.OUTPUT:
                sent[placed.name].add(record.digest)
            else:
                got.append((placed, record))
        lost = [
            f"rank {record.key.rank}, step {record.key.step}, micro-batch {placed.name[1]}"
            for placed, record in got
            if record.digest not in sent[placed.name]
        ]
        return len(got) - len(lost), lost
