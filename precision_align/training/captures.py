"""What to record next, given where two curves part: the steps, how closely, and the commands."""

from __future__ import annotations

from dataclasses import dataclass

from precision_align.core.dtypes import Array
from precision_align.recording.zoomplans import ZoomPlan
from precision_align.training.onset import Onset

FULL_STEPS = 4  # steps that are worth storing whole; a longer stretch is sketched first


@dataclass(frozen=True)
class CapturePlan:
    """What to record on both sides.

    ``first`` and ``last``: steps as a capture counts them, from 0; ``start``: whether steps 0 and 1 are wanted too;
    ``offset``: by how much the curves' own count is ahead of that; ``payload``: how much of each tensor.
    """

    first: int
    last: int
    start: bool
    offset: int
    payload: str

    @property
    def steps(self) -> str:
        """As ``capture --steps`` takes them."""
        span = f"{self.first}-{self.last}" if self.last > self.first else f"{self.first}"
        return f"0-1,{span}" if self.start and self.first > 1 else span

    @property
    def label(self) -> str:
        """A name for files: the step where the curves part."""
        return f"step{self.last}"

    def to_zoom_plan(self) -> ZoomPlan:
        """What ``capture --plan`` reads."""
        return ZoomPlan(payload={}, default=self.payload, steps=self.steps)


def plan_capture(steps: Array, onset: Onset | None, *, counted_from_zero: bool) -> CapturePlan | None:
    """The step that parts and the one before, whose update made its weights; None where nothing parts.

    Between sparse logged steps all steps in between are wanted; where the first common step differs already, or the
    difference grew slowly, the first steps are wanted too. ``steps``: the common ones; ``counted_from_zero``: whether
    they are a capture's own. A log that does not start at 0 counts its first step as 1.
    """
    if onset is None:
        return None
    offset = 0 if counted_from_zero or int(steps[0]) == 0 else 1
    last = max(0, int(steps[onset.index]) - offset)
    first = max(0, int(steps[onset.index - 1]) - offset) if onset.index else last
    payload = "full" if last - first < FULL_STEPS else "sketch"
    return CapturePlan(first, last, onset.kind == "drift" or not onset.index, offset, payload)
