"""Under which name of the whole model each rank's own modules go: stages of a pipeline, experts of one name.

In this order: what the layout file says, a framework's own layer numbers, and the parameters at the start: those that
equal one of the reference's name its module. Where the ranks together have just the reference's names, they keep them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from precision_align.alignment.layouts import Layouts
from precision_align.core.terms import Phase, Role, Source
from precision_align.storage.base import Dump

Names = Mapping[str, "str | None"]  # raw scope -> aligned scope, None for a wrapper's shell
Tensor = tuple[str, bytes, tuple[int, ...]]  # local name, hash, shape


@dataclass
class Renaming:
    """One rank's modules. ``prefixes``: scope -> the whole model's; ``lists``: scope of a list of modules -> (the whole
    model's, what is added to each number)."""

    prefixes: dict[str, str] = field(default_factory=dict)
    lists: dict[str, tuple[str, int]] = field(default_factory=dict)

    def apply(self, scope: str) -> str:
        """The whole model's name of a module: by the longest prefix that is known."""
        parts = split_scope(scope)
        for end in range(len(parts), -1, -1):
            head = ".".join(parts[:end])
            if head in self.prefixes:
                return ".".join([*split_scope(self.prefixes[head]), *parts[end:]])
            parent, number = ".".join(parts[: end - 1]), parts[end - 1] if end else ""
            if number.isdecimal() and parent in self.lists:
                target, offset = self.lists[parent]
                return ".".join([*split_scope(target), str(int(number) + offset), *parts[end:]])
        return scope

    @property
    def is_empty(self) -> bool:
        """Whether every name stays."""
        return all(one == other for one, other in self.prefixes.items()) and all(
            (scope, 0) == target for scope, target in self.lists.items()
        )


def split_scope(scope: str) -> list[str]:
    """The parts of a scope, none for the root."""
    return scope.split(".") if scope else []


def find_renamings(
    dump: Dump, names: Names, reference: Dump, theirs: Names, layouts: Layouts
) -> tuple[dict[int, Renaming], dict[int, str]]:
    """For each rank its :class:`Renaming`, and by what it was found ("" where every name stays)."""
    rank = min(reference.ranks)
    whole = _collect_start(reference, theirs)[rank]
    known = _collect_start(dump, names)
    covered = {scope for owned in known.values() for scope in owned} == set(whole)
    called = {one for call in reference.calls if (one := theirs.get(call.scope)) is not None}
    renamings, found = {}, {}
    for info in dump.infos:
        owned = known.get(info.rank, {})
        calls = [call for call in dump.calls if call.rank == info.rank]
        own_calls = {one for call in calls if (one := names.get(call.scope)) is not None}
        numbers = (info.capture.get("layout") or {}).get("layers") or {}
        renaming, how = _read_layout(info.rank, layouts), "the layout file"
        if renaming.is_empty:
            renaming, how = _read_numbers(numbers, names, set(theirs.values())), "the framework's layer numbers"
        if renaming.is_empty and not covered:
            renaming, how = _match_content(owned, whole), "the parameters at the start"
        if not renaming.is_empty:
            _name_callers(renaming, owned, own_calls, called)
        renamings[info.rank], found[info.rank] = renaming, "" if renaming.is_empty else how
    return renamings, found


def _collect_start(dump: Dump, names: Names) -> Mapping[int, Mapping[str, set[Tensor]]]:
    """Rank -> scope -> its own parameters as the rank's first recorded step began."""
    first: dict[int, int] = {}
    found: dict[int, dict[str, set[Tensor]]] = defaultdict(lambda: defaultdict(set))
    for record in dump.records:
        key = record.key
        if (key.source, key.role, key.phase) != (Source.PARAMETERS, Role.PARAMETER, Phase.FORWARD):
            continue
        scope = names.get(key.scope, key.scope)
        if first.setdefault(key.rank, key.step) == key.step and scope is not None:
            found[key.rank][scope].add((key.path, record.digest, record.shape))
    return found


def _read_layout(rank: int, layouts: Layouts) -> Renaming:
    renaming = Renaming()
    for ranks, scope, target in layouts.stages:
        if rank in ranks:
            if isinstance(target, int):
                renaming.lists[scope] = scope, target
            else:
                renaming.prefixes[scope] = target
    return renaming


def _read_numbers(numbers: Mapping[str, int], names: Names, theirs: set[str | None]) -> Renaming:
    """Megatron's ``layer_number``, which counts from 1 through the whole model; in a chunk's list or the model's."""
    renaming = Renaming()
    for raw, number in numbers.items():
        scope = names.get(raw) or raw
        parts = split_scope(scope)[:-1]
        for start in range(len(parts) + 1):
            target = ".".join([*parts[start:], str(number - 1)])
            if target in theirs:
                renaming.prefixes[scope] = target
                break
    return renaming


def _match_content(owned: Mapping[str, set[Tensor]], whole: Mapping[str, set[Tensor]]) -> Renaming:
    """By tensors that are unique in the reference; modules without any follow their neighbours in a list."""
    holders: dict[Tensor, set[str]] = defaultdict(set)
    for scope, tensors in whole.items():
        for tensor in tensors:
            holders[tensor].add(scope)
    votes: dict[str, Counter[str]] = defaultdict(Counter)
    for scope, tensors in owned.items():
        for tensor in tensors:
            if tensor[1] and len(holders[tensor]) == 1:
                prefix, target = _drop_common(scope, next(iter(holders[tensor])))
                votes[prefix][target] += 1
    renaming = Renaming({prefix: _choose(targets) for prefix, targets in votes.items()})
    renaming.lists.update(_find_lists(renaming.prefixes))
    for prefix, target in list(renaming.prefixes.items()):
        parent, _, number = prefix.rpartition(".")
        if number.isdecimal() and renaming.lists.get(parent, ("", 0))[0] == target.rpartition(".")[0]:
            renaming.prefixes.pop(prefix)  # one layer that holds another's tensors is no renaming, but a fault
    return renaming


def _drop_common(scope: str, other: str) -> tuple[str, str]:
    """Both without the parts at the end that are the same."""
    ours, theirs = split_scope(scope), split_scope(other)
    while ours and theirs and ours[-1] == theirs[-1]:
        ours.pop()
        theirs.pop()
    return ".".join(ours), ".".join(theirs)


def _choose(targets: Counter[str]) -> str:
    return min(targets, key=lambda target: (-targets[target], target))


def _find_lists(prefixes: Mapping[str, str]) -> dict[str, tuple[str, int]]:
    """Lists most of whose members are the same number of places away from the whole model's."""
    seen: dict[str, Counter[tuple[str, int]]] = defaultdict(Counter)
    for prefix, target in prefixes.items():
        ours, theirs = split_scope(prefix), split_scope(target)
        if ours and theirs and ours[-1].isdecimal() and theirs[-1].isdecimal():
            seen[".".join(ours[:-1])][".".join(theirs[:-1]), int(theirs[-1]) - int(ours[-1])] += 1
    most = {parent: counts.most_common(1)[0] for parent, counts in seen.items()}
    return {parent: target for parent, (target, count) in most.items() if 2 * count > sum(seen[parent].values())}


def _name_callers(renaming: Renaming, owned: Iterable[str], own_calls: set[str], called: set[str]) -> None:
    """A chunk that is called goes under the name of what calls its modules in the reference."""
    for scope in owned:
        above = [caller for caller in _list_callers(renaming.apply(scope)) if caller in called]
        for caller in _list_callers(scope):
            if above and caller in own_calls and renaming.apply(caller) not in called:
                renaming.prefixes[caller] = above[-1]


def _list_callers(scope: str) -> list[str]:
    """The scopes around one, the nearest first, the root last."""
    parts = split_scope(scope)
    return [".".join(parts[:end]) for end in range(len(parts) - 1, -1, -1)]
