"""Which torch_npu release has which operator, from the wheels that were read (``data/torch_npu_operators.tsv``)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

_VERSION = re.compile(r"(\d+)\.(\d+)\.(\d+)(?:\.post(\d+))?")


@dataclass(frozen=True)
class Releases:
    """``names``: the releases read, oldest torch first; ``cann``: release -> CANN, where known; ``operators``: name ->
    the releases that have it.
    """

    names: tuple[str, ...]
    cann: dict[str, str]
    operators: dict[str, frozenset[str]]

    def find_absent(self, operator: str, since: Iterable[str]) -> tuple[str, ...]:
        """Releases among ``since`` that were read and do not have the operator."""
        have = self.operators.get(operator, frozenset())
        return tuple(release for release in since if release in self.names and release not in have)

    def find_first(self, operator: str) -> tuple[str, ...]:
        """Its first release, then the first later posts of older torch lines that have it too; empty: in none."""
        have = [name for name in self.names if name in self.operators.get(operator, frozenset())]
        missing = [name for name in self.names if name not in have]
        complete = [name for name in have if not any(order(other) > order(name) for other in missing)]
        if not complete:
            return tuple(have[:1])
        first = complete[0]
        older = [name for name in have if order(name) < order(first)]
        lines = {name.partition(".post")[0]: name for name in reversed(older)}
        return (first, *sorted(lines.values(), key=order))

    def list_available(self, since: tuple[str, ...]) -> tuple[str, ...]:
        """The releases read in which something exists that came with ``since``, one version a line; empty: all."""
        return tuple(name for name in self.names if self.is_available(name, since))

    def is_available(self, release: str, since: tuple[str, ...]) -> bool:
        """Whether any release, read or not, has it: judged by order within and between the lines of torch."""
        return not since or _is_after(release, since)


def _is_after(release: str, since: tuple[str, ...]) -> bool:
    """At or after the newest torch line's first version; or a later post of one of the older lines."""
    newest = max(since, key=order)
    same_line = [first for first in since if order(first)[:3] == order(release)[:3]]
    return order(release) >= order(newest) or any(order(release) >= order(first) for first in same_line)


def order(version: str) -> tuple[int, ...]:
    """Sort key of a torch_npu version: torch's version, then the post number."""
    found = _VERSION.match(version)
    return tuple(int(part or 0) for part in found.groups()) if found else (0, 0, 0, 0)


@cache
def read_releases() -> Releases:
    """The table that comes with the package."""
    text = files("precision_align.library").joinpath("data/torch_npu_operators.tsv").read_text(encoding="utf-8")
    lines = [line.split("\t") for line in text.splitlines() if line and not line.startswith("#")]
    names = tuple(lines[0][1:])
    cann = {name: value for name, value in zip(names, lines[1][1:]) if value}
    rows = {line[0]: frozenset(n for n, flag in zip(names, line[1:]) if flag == "1") for line in lines[2:]}
    return Releases(names, cann, rows)
