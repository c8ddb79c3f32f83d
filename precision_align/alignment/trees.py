"""The calls of ranks that hold different modules as one tree, with micro-batches and calls numbered alike on all."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from precision_align.core.keys import Key
from precision_align.core.records import Call
from precision_align.core.terms import Pass

Name = tuple[int, int, str, int, Pass]  # step, micro-batch, the whole model's scope, number of the call, pass
Event = tuple[int, ...]  # step, part of the step, micro-batch, pass, place in the model, sequence number, rank
BEHIND = 1 << 30  # place of modules that the reference does not call: behind all others


@dataclass(frozen=True)
class Placed:
    """What a rank's call is in the whole: ``place``: of its stage in the reference's order."""

    name: Name
    place: int
    call: Call
    parent: Name | None

    def make_event(self, number: int) -> Event:
        """When something of this call's forward pass came, by the rank's sequence number."""
        return self.name[0], 1, self.name[1], 0, self.place, number, self.call.rank


class Forest:
    """``rename``: (rank, raw scope) -> the whole model's scope, None for shells; ``positions``: scope -> its place in
    the reference's first step."""

    def __init__(
        self,
        calls: Sequence[Call],
        rename: Callable[[int, str], str | None],
        positions: Mapping[str, int],
    ) -> None:
        self._rename, self._positions = rename, positions
        self._scopes = {(call.rank, call.scope): rename(call.rank, call.scope) for call in calls}
        self._outer: dict[tuple[int, int, int], Call | None] = {}  # the caller, shells left out
        self._tops: dict[tuple[int, int, int], Call] = {}  # the outermost call around it
        ordered = sorted(calls, key=lambda call: (call.rank, call.step, call.enter))
        by_identity = {_identify(call): call for call in ordered}
        for call in ordered:
            above = by_identity.get((call.rank, call.step, call.parent))
            while above is not None and self._scope(above) is None:
                above = by_identity.get((above.rank, above.step, above.parent))
            self._outer[_identify(call)] = above
            self._tops[_identify(call)] = call if above is None else self._tops[_identify(above)]
        self._known = [call for call in ordered if self._scope(call) is not None]
        self._places = self._find_places()
        self._placed: dict[tuple[int, int, int], Placed] = {}
        self._by_key: dict[tuple[int, int, int, str, int, Pass], Placed] = {}
        self.batches: dict[tuple[int, int], int] = defaultdict(int)
        self._number()
        self._groups: dict[Name, list[Placed]] = defaultdict(list)
        for placed in self._placed.values():
            self._groups[placed.name].append(placed)
        for members in self._groups.values():
            members.sort(key=lambda one: (one.place, one.call.rank))

    def _scope(self, call: Call) -> str | None:
        return self._scopes[call.rank, call.scope]

    def _find_places(self) -> Mapping[tuple[int, str], int]:
        """(rank, scope of an outermost module) -> place. Those that share a leaf are one stage on several ranks."""
        leaves: dict[tuple[int, str], set[str]] = defaultdict(set)
        for call in self._known:
            if call.leaf:
                leaves[call.rank, self._tops[_identify(call)].scope].add(str(self._scope(call)))
        stages: list[set[str]] = []
        for own in leaves.values():
            shared = [stage for stage in stages if stage & own]
            stages = [stage for stage in stages if not stage & own] + [own.union(*shared)]
        return {
            top: min(self._positions.get(leaf, BEHIND) for stage in stages if stage & own for leaf in stage)
            for top, own in leaves.items()
        }

    def _number(self) -> None:
        seen: dict[tuple[int, int, str], int] = defaultdict(int)
        firsts: dict[tuple[int, int, int, str, int], int] = {}
        counts: dict[tuple[int, int, int, int, str, Pass], int] = defaultdict(int)
        tops: dict[tuple[int, int, int], int] = {}
        for call in self._known:
            top, scope = self._tops[_identify(call)], self._scope(call)
            if top is call:
                batch = seen[call.rank, call.step, call.scope]
                if call.pass_ == Pass.FIRST:
                    seen[call.rank, call.step, call.scope] += 1
                else:
                    batch = firsts.get((call.rank, call.step, call.micro, call.scope, call.call), 0)
                tops[_identify(call)] = batch
            batch = tops[_identify(top)]
            firsts.setdefault((call.rank, call.step, call.micro, call.scope, call.call), batch)
            self.batches[call.rank, call.step] = max(self.batches[call.rank, call.step], batch + 1)
            place = self._places.get((call.rank, top.scope), BEHIND)
            slot = (call.rank, call.step, batch, place, str(scope), call.pass_)
            name: Name = (call.step, batch, str(scope), counts[slot], call.pass_)
            counts[slot] += 1
            above = self._outer[_identify(call)]
            placed = Placed(name, place, call, None if above is None else self._placed[_identify(above)].name)
            self._placed[_identify(call)] = placed
            self._by_key[call.rank, call.step, call.micro, call.scope, call.call, call.pass_] = placed

    def find(self, key: Key) -> Placed | None:
        """The call that a module's record belongs to."""
        return self._by_key.get((key.rank, key.step, key.micro, key.scope, key.call, key.pass_))

    def find_ends(self, name: Name) -> tuple[int, int]:
        """Places of the first and of the last stage that has a part of a call."""
        members = self._groups[name]
        return members[0].place, members[-1].place

    @property
    def events(self) -> list[Event]:
        """Beginnings and ends of all calls."""
        return [
            placed.make_event(number)
            for placed in self._placed.values()
            for number in (placed.call.enter, placed.call.exit)
        ]

    def make_calls(self, numbers: Mapping[Event, int], rank: int) -> list[Call]:
        """The whole's calls as one rank's, in exit order."""
        spans = {
            name: (
                min(numbers[one.make_event(one.call.enter)] for one in members),
                max(numbers[one.make_event(one.call.exit)] for one in members),
            )
            for name, members in self._groups.items()
        }
        made = []
        for name, members in self._groups.items():
            first, last = members[0], next(one for one in members if one.place == members[-1].place)
            step, batch, scope, number, _ = name
            made.append(
                replace(
                    first.call,
                    rank=rank,
                    step=step,
                    micro=batch,
                    scope=scope,
                    call=number,
                    identity=spans[name][0],
                    parent=-1 if first.parent is None else spans[first.parent][0],
                    enter=spans[name][0],
                    exit=spans[name][1],
                    leaf=all(one.call.leaf for one in members),
                    output=last.call.output,
                )
            )
        return sorted(made, key=lambda call: (call.step, call.exit))


def _identify(call: Call) -> tuple[int, int, int]:
    return call.rank, call.step, call.identity
