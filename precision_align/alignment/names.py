"""The same module under two names: wrapper parts that frameworks put into module paths."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from precision_align.core.wrappers import WRAPPER_PARTS

# Their classes, which compute nothing of their own.
WRAPPER_CLASSES = frozenset(
    {
        "DistributedDataParallel",
        "DataParallel",
        "OptimizedModule",
        "CheckpointWrapper",
        "FullyShardedDataParallel",
        "DeepSpeedEngine",
        "Float16Module",
        "_LightningModuleWrapperBase",
        "_FabricModule",
    }
)


def find_shells(scopes: Iterable[str], kinds: Mapping[str, str], working: Iterable[str] = ()) -> set[str]:
    """Scopes that only wrap another module.

    A shell holds a module under a wrapper part, and is of a known wrapper class or holds nothing else. ``kinds``: scope
    -> full class name; ``working``: scopes that were seen to compute something besides calling what they hold, so that
    a user's own attribute called "module" does not make its owner disappear.
    """
    busy = set(working)
    held: dict[str, set[str]] = defaultdict(set)
    for scope in set(scopes):
        parts = scope.split(".") if scope else []
        for index, part in enumerate(parts):
            held[".".join(parts[:index])].add(part)
    shells = set()
    for scope in set(scopes):
        inner = held.get(scope, set())
        if not inner & WRAPPER_PARTS:
            continue
        if kinds.get(scope, "").rpartition(".")[2] in WRAPPER_CLASSES or (len(inner) == 1 and scope not in busy):
            shells.add(scope)
    return shells


def align_names(
    scopes: Iterable[str], kinds: Mapping[str, str] | None = None, working: Iterable[str] = ()
) -> dict[str, str | None]:
    """Raw scope -> aligned scope, or None for a wrapper's own shell; see :func:`find_shells`.

    Only the wrapper parts directly behind a shell are dropped. Where dropping them would give two modules one name,
    both keep their raw names.
    """
    known = list(dict.fromkeys(scopes))
    shells = find_shells(known, kinds or {}, working)
    aligned: dict[str, str | None] = {scope: None if scope in shells else _drop(scope, shells) for scope in known}
    counts: dict[str, int] = {}
    for name in aligned.values():
        if name is not None:
            counts[name] = counts.get(name, 0) + 1
    return {scope: scope if name is not None and counts[name] > 1 else name for scope, name in aligned.items()}


def _drop(scope: str, shells: set[str]) -> str:
    parts = scope.split(".") if scope else []
    kept = []
    for index, part in enumerate(parts):
        if ".".join(parts[:index]) in shells and part in WRAPPER_PARTS:
            continue
        kept.append(part)
    return ".".join(kept)
