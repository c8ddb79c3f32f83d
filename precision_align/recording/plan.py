"""What a session records: which steps, which scopes, how much of each tensor."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Optional, Union

from precision_align.core.errors import UsageError
from precision_align.core.ranges import parse_numbers
from precision_align.core.terms import Tier
from precision_align.recording.zoomplans import ZoomPlan

SOURCES = ("modules", "gradients", "parameters", "optimizer")
# Off by default: they see more, cost more, and run the program under a torch mode.
EXTRA_SOURCES = ("operators", "functions", "collectives")
Steps = Union[str, int, Collection[int], None]
Payload = Union[str, Tier, Mapping[str, Union[str, Tier]]]
Select = Union[str, Sequence[str], ZoomPlan, None]


@dataclass(frozen=True)
class Plan:
    """The parsed arguments of a session.

    ``tiers``: (scope glob, tier) pairs, the last match wins, FULL where none matches; ``select``: scope globs, None
    for all; ``steps``: None for all.
    """

    sources: frozenset[str]
    tiers: tuple[tuple[str, Tier], ...]
    select: Optional[tuple[str, ...]]
    steps: Optional[Collection[int]]
    _tier_of: dict[str, Tier] = field(default_factory=dict, repr=False, compare=False)

    def describe(self) -> dict[str, Any]:
        """The plan as JSON."""
        return {
            "sources": sorted(self.sources),
            "payload": {glob: str(tier) for glob, tier in self.tiers},
            "select": None if self.select is None else list(self.select),
            "steps": None if self.steps is None else format_steps(self.steps),
        }

    def tier(self, scope: str) -> Tier:
        """How much of this scope's tensors is asked for."""
        if scope not in self._tier_of:
            matching = [tier for glob, tier in self.tiers if fnmatchcase(scope, glob)]
            self._tier_of[scope] = matching[-1] if matching else Tier.FULL
        return self._tier_of[scope]

    def wants_scope(self, scope: str) -> bool:
        """Whether tensors of this scope are recorded (its calls always are)."""
        return self.select is None or any(fnmatchcase(scope, glob) for glob in self.select)

    def wants_step(self, step: int) -> bool:
        """Whether this step is recorded."""
        return self.steps is None or step in self.steps


def make_plan(
    sources: Sequence[str] = SOURCES,
    payload: Payload = "full",
    select: Select = None,
    steps: Steps = None,
) -> Plan:
    """Check and parse what the user asked for. Raises UsageError for unknown names and unreadable step lists."""
    known = (*SOURCES, *EXTRA_SOURCES)
    unknown = sorted(set([sources] if isinstance(sources, str) else sources) - set(known))
    if unknown:
        raise UsageError(f"unknown sources {', '.join(map(repr, unknown))}; there are {', '.join(known)}")
    if isinstance(select, ZoomPlan):
        return _zoom(select, sources, payload, steps)
    globs = [select] if isinstance(select, str) else select
    return Plan(
        sources=frozenset([sources] if isinstance(sources, str) else sources),
        tiers=_parse_payload(payload),
        select=None if globs is None else tuple(globs),
        steps=parse_steps(steps),
    )


def _zoom(zoom: ZoomPlan, sources: Sequence[str], payload: Payload, steps: Steps) -> Plan:
    """A zoom plan's tiers, then those given beside it as a mapping; steps given beside it go first."""
    tiers: dict[str, Union[str, Tier]] = {"*": zoom.default, **zoom.payload}
    tiers.update(payload if isinstance(payload, Mapping) else {})
    return make_plan(sources, tiers, None, zoom.steps if steps is None else steps)


def _parse_payload(payload: Payload) -> tuple[tuple[str, Tier], ...]:
    pairs = payload.items() if isinstance(payload, Mapping) else [("*", payload)]
    return tuple((glob, _parse_tier(tier)) for glob, tier in pairs)


def _parse_tier(name: Union[str, Tier]) -> Tier:
    try:
        return Tier(name)
    except ValueError:
        known = ", ".join(str(tier) for tier in Tier)
        raise UsageError(
            f"unknown payload {name!r}; choose one of {known}, or a mapping of scope globs to them"
        ) from None


def parse_steps(steps: Steps) -> Optional[Collection[int]]:
    """A set or range of step numbers from "3,10-12", a number or any collection; None stays None (all steps).

    Raises UsageError where a part of the text is neither a number nor a range.
    """
    if steps is None or isinstance(steps, range):
        return steps
    if isinstance(steps, int):
        return frozenset([steps])
    if not isinstance(steps, str):
        return frozenset(int(step) for step in steps)
    return parse_numbers(steps)


def format_steps(steps: Collection[int]) -> str:
    """The text form, such as "3,10-12"."""
    if isinstance(steps, range) and steps.step == 1 and steps:
        return f"{steps[0]}-{steps[-1]}"
    parts: list[list[int]] = []
    for step in sorted(steps):
        if parts and step == parts[-1][1] + 1:
            parts[-1][1] = step
        else:
            parts.append([step, step])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in parts)
