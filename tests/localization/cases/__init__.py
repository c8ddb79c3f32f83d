"""Re-creations of public bug reports and of harmless differences, small enough to run in milliseconds.

A case is a function that builds (module, inputs) for the reference (``faulty=False``) or the candidate
(``faulty=True``), with what a right report says of the pair.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

Pair = tuple[torch.nn.Module, Any]
BENIGN = "benign"
DIVERGENCE = "divergence"
MISSED = "missed"

_FOUND: list[Case] = []


@dataclass(frozen=True)
class Case:
    """One pair of sides. ``EXPECT`` has the keys of the shared corpus: first, kind, site, phase, call, source."""

    name: str
    build: Callable[[bool], Pair]
    EXPECT: Mapping[str, Any]

    def reference(self) -> Pair:
        """The side that is right."""
        return self.build(False)

    def candidate(self) -> Pair:
        """The side under suspicion."""
        return self.build(True)


def case(
    first: str | None, source: str = "", **expect: Any
) -> Callable[[Callable[[bool], Pair]], Callable[[bool], Pair]]:
    """Register a builder. ``first``: the scope to blame, "<inputs>", or None for nothing to blame."""

    def register(build: Callable[[bool], Pair]) -> Callable[[bool], Pair]:
        family = build.__module__.rpartition(".")[2]
        kind = expect.pop("kind", BENIGN if first is None else DIVERGENCE)
        _FOUND.append(
            Case(f"{family}.{build.__name__}", build, {"first": first, "kind": kind, "source": source, **expect})
        )
        return build

    return register


def find_cases() -> list[Case]:
    """All cases of all families, by name."""
    for path in sorted(Path(__file__).parent.glob("[a-z]*.py")):
        import_module(f"{__name__}.{path.stem}")
    return sorted(_FOUND, key=lambda found: found.name)
