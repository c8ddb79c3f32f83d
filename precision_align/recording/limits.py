"""What bounds a session: byte budget, trigger and ring, the switch from outside, cheap facts."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Optional, Union

from precision_align.core.errors import UsageError
from precision_align.recording.budgets import Budget
from precision_align.recording.plan import Plan, Steps, parse_steps
from precision_align.recording.rings import RING_BYTES
from precision_align.recording.signals import Switch
from precision_align.recording.triggers import Trigger
from precision_align.storage.settings import DEFAULT_SETTINGS, Settings


@dataclass(frozen=True)
class Limits:
    """Arguments of :func:`~precision_align.recording.session.capture`, by the same names; ``storage``: how the dump is
    written.
    """

    budget_bytes: Optional[int] = None
    trigger: Union[str, Sequence[str], None] = None
    ring: int = 4
    ring_bytes: int = RING_BYTES
    switch: Optional[str] = None
    facts: Optional[bool] = None
    storage: Settings = DEFAULT_SETTINGS
    ranks: Steps = None

    def check(self) -> None:
        """Raises UsageError for values that make no sense, Unavailable for a codec that is not installed."""
        for name, value in (("budget_bytes", self.budget_bytes), ("ring", self.ring), ("ring_bytes", self.ring_bytes)):
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise UsageError(f"{name} is a whole number from 1 on, not {value!r}")
        self.storage.check()
        parse_steps(self.ranks)

    @property
    def wants_facts(self) -> bool:
        """Whether facts of every batch are wanted."""
        return self.trigger is not None if self.facts is None else self.facts

    def describe(self) -> dict[str, Any]:
        """Those that were given, as JSON."""
        trigger = [self.trigger] if isinstance(self.trigger, str) else self.trigger
        given: dict[str, Any] = {"budget_bytes": self.budget_bytes, "switch": self.switch}
        if trigger is not None:
            given.update(trigger=list(trigger), ring=self.ring)
        return {name: value for name, value in given.items() if value is not None}

    def wants_rank(self, rank: int) -> bool:
        """Whether this process records."""
        ranks = parse_steps(self.ranks)
        return ranks is None or rank in ranks

    def make_switch(self, opened: ExitStack) -> Optional[Switch]:
        """The switch, if any; ``opened`` closes it. Raises UsageError."""
        if self.switch is None:
            return None
        switch = Switch(self.switch)
        opened.callback(switch.close)
        return switch

    def make_trigger(self, opened: ExitStack) -> Optional[Trigger]:
        """The trigger, if any; ``opened`` closes it. Raises UsageError."""
        if self.trigger is None:
            return None
        trigger = Trigger(self.trigger)
        opened.callback(trigger.close)
        return trigger

    def make_budget(self, plan: Plan) -> Optional[Budget]:
        """The budget, if any."""
        if self.budget_bytes is None:
            return None
        return Budget(self.budget_bytes, None if plan.steps is None else len(plan.steps))


NO_LIMITS = Limits()
