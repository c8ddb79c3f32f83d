"""The rename file: which module of the candidate is which of the reference, where their programs name them differently.

A TOML file with one table, ``[modules]``, candidate = reference::

    [modules]
    "encoder.blocks.*" = "model.layers.*"
    "encoder.blocks.*.attn.proj" = "model.layers.*.self_attn.o_proj"

A pattern speaks of a module and of all inside it; ``*`` stands for one part of a path and is carried over in order. Of
several that fit, the one with the most parts counts, and it alone.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from precision_align.core.errors import UsageError
from precision_align.storage.foreign.naming import read_toml

Pattern = tuple[tuple[str, ...], tuple[str, ...]]


def read_renames(rename: Any) -> list[Pattern]:
    """Patterns, the longest first, from a mapping candidate -> reference or the path of a file.

    Raises UsageError naming everything that is wrong.
    """
    if rename is None:
        return []
    if isinstance(rename, Mapping):
        table, place = rename, "rename"
    else:
        place = os.fspath(rename)
        content = read_toml(Path(place), "rename file")
        unknown = sorted(set(content) - {"modules"})
        if unknown:
            raise UsageError(f"{place}: unknown keys {', '.join(unknown)}; there is one table, [modules]")
        table = content.get("modules", {})
    if not isinstance(table, Mapping) or not all(isinstance(name, str) for name in table.values()):
        raise UsageError(f'{place}: [modules] is a table of texts, such as "blocks.*.proj" = "layers.*.o_proj"')
    bad = [f"{left!r} = {right!r}" for left, right in table.items() if left.count("*") != right.count("*")]
    bad += [f"{left!r}" for left, right in table.items() if not left or _has_part_star(left) or _has_part_star(right)]
    if bad:
        text = "* stands for one whole part of a path, and as often on both sides"
        raise UsageError(f"{place}: {', '.join(bad)}: {text}")
    patterns = [(tuple(left.split(".")), tuple(right.split("."))) for left, right in table.items()]
    return sorted(patterns, key=lambda pattern: (-len(pattern[0]), pattern[0].count("*")))


def _has_part_star(pattern: str) -> bool:
    return any("*" in part and part != "*" for part in pattern.split("."))


def rename_scope(scope: str, patterns: Sequence[Pattern]) -> str | None:
    """A module's path under the first pattern that fits, or None."""
    parts = scope.split(".")
    for left, right in patterns:
        stars = _match(left, parts)
        if stars is not None:
            filled = [stars.pop(0) if part == "*" else part for part in right if part]
            return ".".join([*filled, *parts[len(left) :]])
    return None


def _match(pattern: Sequence[str], parts: Sequence[str]) -> list[str] | None:
    if len(pattern) > len(parts) or any(one not in ("*", part) for one, part in zip(pattern, parts)):
        return None
    return [part for one, part in zip(pattern, parts) if one == "*"]
