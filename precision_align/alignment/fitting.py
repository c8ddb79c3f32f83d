"""The candidate's side under the reference's names and in the reference's cut."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from precision_align.alignment.fusions import Fusion
from precision_align.alignment.matching import Matching, match_modules
from precision_align.alignment.pairing import Alignment
from precision_align.alignment.refitting import RefittedDump, list_raw_scopes
from precision_align.alignment.renaming import read_renames
from precision_align.alignment.side import Side
from precision_align.core.results import ModulePair
from precision_align.core.terms import Way
from precision_align.storage.base import Dump

# So many modules without a partner are named in a note; the report has all.
SHOWN = 5


@dataclass
class Fitted:
    """``side``: the candidate's, as it is compared; ``plain``: as it was recorded; ``own``: aligned scope -> what the
    candidate calls it, where that is not the same; ``renames``, ``fusions``: what was changed for the comparison.
    """

    side: Side
    plain: Side
    alignment: Alignment
    modules: list[ModulePair] = field(default_factory=list)
    own: dict[str, str] = field(default_factory=dict)
    renames: Mapping[str, str] = field(default_factory=dict)
    fusions: list[Fusion] = field(default_factory=list)

    def arrange(self, dump: Dump) -> Side:
        """A further run of the candidate in the same way."""
        return _arrange(Side(dump), self.renames, self.fusions)[0]

    def describe(self) -> list[str]:
        """What is not simply called the same on both sides, counted and, as far as there is room, listed."""
        counts = Counter(pair.way for pair in self.modules)
        if set(counts) <= {Way.MATCHED}:
            return []
        found = ["modules: " + ", ".join(f"{counts[way]} {way}" for way in Way if counts[way])]
        for way in (Way.FUSED, Way.INSERTED, Way.REMOVED, Way.UNRESOLVED):
            members = [pair for pair in self.modules if pair.way == way]
            if members:
                shown = "; ".join(_phrase(pair) for pair in members[:SHOWN])
                more = f"; {len(members) - SHOWN} more" if len(members) > SHOWN else ""
                found.append(f"modules {way}: {shown}{more}")
        return found


def fit(reference: Side | None, candidate: Dump, rename: Any = None) -> Fitted:
    """``rename``: as in :func:`~precision_align.alignment.renaming.read_renames`. Raises UsageError."""
    patterns = read_renames(rename)
    plain = Side(candidate)
    alignment = Alignment(reference, plain)
    if reference is None:
        return Fitted(plain, plain, alignment)
    matching = match_modules(reference, plain, alignment.units, patterns)
    fitted = Fitted(plain, plain, alignment, matching.list_pairs())
    renames = {scope: partner for scope, partner in matching.partners.items() if scope != partner}
    if not renames and not matching.fusions:
        return fitted
    renames.update(_rename_uncalled(plain, matching))
    fitted.renames, fitted.fusions = renames, matching.fusions
    fitted.side, names = _arrange(plain, renames, matching.fusions)
    fitted.alignment = Alignment(reference, fitted.side)
    fitted.own = {partner: scope for scope, partner in names.items()}
    return fitted


def _rename_uncalled(side: Side, matching: Matching) -> dict[str, str]:
    """Owners of parameters that are never called move with the module that they are in.

    A module that is the candidate's alone and has the name of another's partner makes room for it.
    """
    found: dict[str, str] = {}
    taken = set(matching.partners.values())
    fused = {scope for fusion in matching.fusions for scope in (fusion.whole, *fusion.parts)}
    for scope in filter(None, dict.fromkeys(side.names.values())):
        if scope in matching.partners or scope in fused:
            continue
        parts = scope.split(".")
        above = (".".join(parts[:count]) for count in range(len(parts) - 1, 0, -1))
        holder = next((one for one in above if one in matching.partners), None)
        if holder is not None and scope not in matching.ours:
            found[scope] = ".".join(filter(None, (matching.partners[holder], scope[len(holder) + 1 :])))
        elif scope in taken:
            found[scope] = f"{scope} (the candidate's)"
    return {scope: name for scope, name in found.items() if scope != name}


def _arrange(side: Side, renames: Mapping[str, str], fusions: list[Fusion]) -> tuple[Side, Mapping[str, str]]:
    """The side under other names and in another cut; and all new names, those of cut and joined modules included."""
    if not fusions:
        return Side(side.dump, renames), renames
    found = []
    for fusion in fusions:
        scopes = [fusion.whole] if fusion.whole_is_candidate else list(fusion.parts)
        found.append((fusion, tuple(list_raw_scopes(side.names, scopes))))
    dump = RefittedDump(side.dump, found)
    names = {**renames, **dump.added}
    return Side(dump, names), names


def _phrase(pair: ModulePair) -> str:
    both = " = ".join(filter(None, (pair.candidate, pair.reference)))
    return f"{both} ({pair.note})" if pair.note else both
