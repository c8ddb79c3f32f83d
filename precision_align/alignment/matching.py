"""Which module of the candidate is which of the reference, where the two programs name or cut them differently.

Equal names first, then the rename file. What is left on both sides is paired by content: bit-equal weights, outputs
that are nearest to each other by a margin, callers of what is paired already, and places between two such pairs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from precision_align.alignment.contents import Likeness, Profile, pair_by_weights, pair_in_order, profile
from precision_align.alignment.fusions import Fusion, find_fusions
from precision_align.alignment.renaming import Pattern, rename_scope
from precision_align.alignment.side import Side, Unit
from precision_align.core.errors import UsageError
from precision_align.core.results import ModulePair
from precision_align.core.terms import Way

_GROUNDS = {"weights": "equal weights", "outputs": "like outputs", "callers": "what it calls", "order": "its place"}


@dataclass
class Matching:
    """``partners``: candidate's aligned scope -> the reference's; ``grounds``: on what those by content rest."""

    ours: Mapping[str, Profile]
    theirs: Mapping[str, Profile]
    partners: dict[str, str] = field(default_factory=dict)
    mapped: set[str] = field(default_factory=set)
    grounds: dict[str, str] = field(default_factory=dict)
    fusions: list[Fusion] = field(default_factory=list)

    def list_left(self) -> tuple[list[Profile], list[Profile]]:
        """What has no partner yet, on either side."""
        fused = {scope for fusion in self.fusions for scope in (fusion.whole, *fusion.parts)}
        taken = set(self.partners.values())
        ours = [one for scope, one in self.ours.items() if scope not in self.partners and scope not in fused]
        theirs = [one for scope, one in self.theirs.items() if scope not in taken and scope not in fused]
        return ours, theirs

    def take(self, found: Mapping[str, str], ground: str) -> int:
        """Add pairs, one to one; how many are new."""
        counts, taken = Counter(found.values()), set(self.partners.values())
        new = {
            scope: partner
            for scope, partner in found.items()
            if scope not in self.partners and partner not in taken and counts[partner] == 1
        }
        self.partners.update(new)
        self.grounds.update(dict.fromkeys(new, ground))
        return len(new)

    def list_callers(self) -> dict[str | None, str | None]:
        """The pairs as callers; what no module calls has None on both sides."""
        found: dict[str | None, str | None] = {None: None}
        found.update(self.partners)
        return found

    def list_pairs(self) -> list[ModulePair]:
        """Every module of both sides once, the candidate's in the order of their first calls."""
        ours, theirs = self.list_left()
        found = [self._describe(scope, partner) for scope, partner in self.partners.items()]
        found += [_describe_fusion(fusion) for fusion in self.fusions]
        for one in ours:
            doubt = any(one.may_be(other) for other in theirs)
            found.append(ModulePair(_name(one.scope), "", Way.UNRESOLVED if doubt else Way.INSERTED))
        for other in theirs:
            doubt = any(one.may_be(other) for one in ours)
            found.append(ModulePair("", _name(other.scope), Way.UNRESOLVED if doubt else Way.REMOVED))
        return found

    def _describe(self, scope: str, partner: str) -> ModulePair:
        way = Way.MAPPED if scope in self.mapped else Way.CONTENT if scope in self.grounds else Way.MATCHED
        note = _GROUNDS[self.grounds[scope]] if scope in self.grounds else ""
        return ModulePair(_name(scope), _name(partner), way, note)


def match_modules(
    reference: Side, candidate: Side, units: Mapping[Unit, Unit], patterns: Sequence[Pattern]
) -> Matching:
    """``units``: the candidate's micro-batches -> the reference's; the one with most calls is looked at."""
    counts = Counter(node.unit for node in candidate.nodes if node.unit in units)
    unit = max(units, key=lambda one: (counts[one], -one.step, -one.micro)) if counts else None
    if unit is None:
        return Matching({}, {})
    matching = Matching(profile(candidate, unit), profile(reference, units[unit]))
    _pair_by_name(matching, patterns)
    ours, theirs = matching.list_left()
    if ours and theirs:
        _pair_by_content(matching, Likeness(candidate, reference))
        parents = matching.list_callers()
        back = {partner: scope for scope, partner in parents.items()}
        ours, theirs = matching.list_left()
        matching.fusions += find_fusions(ours, theirs, (candidate, reference), parents, whole_is_candidate=True)
        ours, theirs = matching.list_left()
        matching.fusions += find_fusions(theirs, ours, (reference, candidate), back, whole_is_candidate=False)
    return matching


def _pair_by_name(matching: Matching, patterns: Sequence[Pattern]) -> None:
    renamed = {scope: rename_scope(scope, patterns) for scope in matching.ours}
    mapped = {scope: name for scope, name in renamed.items() if name is not None and name in matching.theirs}
    twice = [name for name, count in Counter(mapped.values()).items() if count > 1]
    if twice:
        raise UsageError(f"the rename file gives several modules of the candidate one name: {', '.join(twice[:3])}")
    for scope in matching.ours:
        if scope in mapped:
            matching.partners[scope] = mapped[scope]
        elif renamed[scope] is None and scope in matching.theirs and scope not in mapped.values():
            matching.partners[scope] = scope
    matching.mapped |= set(mapped)


def _pair_by_content(matching: Matching, likeness: Likeness) -> None:
    """Until nothing more is found: each pair may settle what was open around it."""
    matching.take(pair_by_weights(*matching.list_left()), "weights")
    grown = 1
    while grown:
        grown = matching.take(likeness.pair(*matching.list_left()), "outputs")
        grown += matching.take(_pair_callers(matching), "callers")
        if not grown:
            grown = matching.take(_pair_places(matching), "order")


def _pair_callers(matching: Matching) -> dict[str, str]:
    """Modules all of whose paired calls are made by one module of the reference."""
    found = {}
    ours, theirs = matching.list_left()
    free = {other.scope for other in theirs}
    callers: dict[str, set[str | None]] = {}
    for scope, partner in matching.partners.items():
        parent = matching.ours[scope].parent if scope in matching.ours else None
        if parent is not None and partner in matching.theirs:
            callers.setdefault(parent, set()).add(matching.theirs[partner].parent)
    for one in ours:
        above = callers.get(one.scope, set())
        if len(above) == 1:
            caller = next(iter(above))
            if caller is not None and caller in free:
                found[one.scope] = caller
    return found


def _pair_places(matching: Matching) -> dict[str, str]:
    """What stands alike between two pairs, in what one paired module calls."""
    found: dict[str, str] = {}
    sides = list(matching.ours.values()), list(matching.theirs.values())
    # other tools' files know no callers: then the calls of the whole run stand in one row, as they ended
    flat = any(len(side) > 1 and all(one.parent is None for one in side) for side in sides)
    ours, theirs = (_group(side, flat) for side in sides)
    parents = matching.list_callers()
    for parent, partner in parents.items():
        if parent in ours and partner in theirs:
            found.update(pair_in_order(ours[parent], theirs[partner], matching.partners))
    return found


def _group(profiles: Iterable[Profile], flat: bool) -> dict[str | None, list[Profile]]:
    if flat:
        return {None: sorted(profiles, key=lambda one: one.node.call.exit)}
    found: dict[str | None, list[Profile]] = {}
    for one in profiles:
        found.setdefault(one.parent, []).append(one)
    return found


def _describe_fusion(fusion: Fusion) -> ModulePair:
    parts = " + ".join(fusion.parts)
    pair = (fusion.whole, parts) if fusion.whole_is_candidate else (parts, fusion.whole)
    return ModulePair(*pair, way=Way.FUSED, note=fusion.layout)


def _name(scope: str) -> str:
    return scope or "(root)"
