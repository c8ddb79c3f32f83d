"""The same module under two names: wrapper parts that frameworks put into module paths."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

# The attribute under which each wrapper keeps the module it wraps: DistributedDataParallel and DataParallel,
# torch.compile, activation checkpointing, FSDP, Lightning and DeepSpeed.
WRAPPER_PARTS = frozenset(
    {"module", "_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module", "_forward_module"}
)


def strip_wrappers(scope: str) -> str:
    """The module path without wrapper parts: "module._orig_mod.layers.0" -> "layers.0"."""
    return ".".join(part for part in scope.split(".") if part not in WRAPPER_PARTS)


def align_names(scopes: Iterable[str]) -> dict[str, str | None]:
    """Raw scope -> aligned scope, or None for a wrapper's own shell.

    Where several scopes strip to one name and each contains the next (a chain of wrappers), the innermost is the module
    and the others are shells. Where they do not form a chain ("a.module" beside "a"'s sibling), stripping would merge
    two different modules: those keep their raw names.
    """
    groups: dict[str, list[str]] = defaultdict(list)
    for scope in dict.fromkeys(scopes):
        groups[strip_wrappers(scope)].append(scope)
    aligned: dict[str, str | None] = {}
    for name, members in groups.items():
        members.sort(key=len)
        if all(_contains(outer, inner) for outer, inner in zip(members, members[1:])):
            aligned.update(dict.fromkeys(members))
            aligned[members[-1]] = name
        else:
            aligned.update({scope: scope for scope in members})
    return aligned


def _contains(outer: str, inner: str) -> bool:
    return outer == "" or inner.startswith(outer + ".")
