"""What became of two curves, as plain data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from precision_align.core.results import Curve
from precision_align.training.acceptance import RuleResult
from precision_align.training.bands import Band
from precision_align.training.batches import BatchOrder
from precision_align.training.captures import CapturePlan
from precision_align.training.plots import plot_curves
from precision_align.training.series import Series
from precision_align.training.spikes import Spike


@dataclass(frozen=True)
class LossReport:
    """What became of two curves.

    ``name``: the series; ``axis``: what its steps count; ``reference`` and ``candidate``: both as read; ``steps``: the
    common ones; ``differences``: (candidate - reference) / scale at each, NaN where a side is not finite (scale: see
    :mod:`~precision_align.training.bands`); ``band``: how wide noise may be, and ``limits`` with the candidate's past
    and the printed digits added, one a common step; ``limit``: the one at the onset, else at the last common step;
    ``onset``: the step where they part, or None; ``kind``: "jump", "drift", "spike", "not a number" or ""; ``cause``:
    "numerical", "data order", "other data" or "" where nothing tells; ``shift``: the candidate sees the reference's
    batches this many logged steps earlier, or None; ``order``: what the batches' fingerprints say, or None; ``spikes``:
    of either curve; ``mean_error`` and ``max_error``: of |difference|, with the step of the largest; ``trend``: change
    of the difference per step (least squares after the onset, else over all); ``acceptance``: which common rules hold;
    ``capture``: what to record next, or None; ``notes``: what was assumed, merged, left out.
    """

    name: str
    axis: str
    reference: Series
    candidate: Series
    steps: tuple[int, ...]
    differences: tuple[float, ...]
    band: Band
    limits: tuple[float, ...]
    limit: float
    onset: int | None
    kind: str
    cause: str
    shift: int | None
    order: BatchOrder | None
    spikes: tuple[Spike, ...]
    mean_error: float
    max_error: float
    max_error_step: int
    trend: float
    acceptance: tuple[RuleResult, ...]
    capture: CapturePlan | None
    notes: tuple[str, ...]

    @property
    def parted(self) -> bool:
        """Whether the curves part beyond their noise."""
        return self.onset is not None

    @property
    def capture_steps(self) -> tuple[int, int] | None:
        """First and last step to record next, as a capture counts them; None where nothing parts."""
        return None if self.capture is None else (self.capture.first, self.capture.last)

    @property
    def onset_difference(self) -> float:
        """The relative difference at the onset; NaN where there is none or a side is not finite there."""
        return math.nan if self.onset is None else self.differences[self.steps.index(self.onset)]

    def to_curve(self) -> Curve:
        """The curve for a comparison's report; its band is in the values' own unit, about where the curves part."""
        place = -1 if self.onset is None else self.steps.index(self.onset)
        value = abs(self.reference.values[self.reference.steps.index(self.steps[place])])
        return Curve(
            name=self.name,
            reference=tuple(zip(self.reference.steps, self.reference.values)),
            candidate=tuple(zip(self.candidate.steps, self.candidate.values)),
            onset=self.onset,
            band=self.limit * value if math.isfinite(value) else self.limit,
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON; numbers that are not finite become their names."""
        return {
            "name": self.name,
            "axis": self.axis,
            "parted": self.parted,
            "onset": self.onset,
            "kind": self.kind,
            "cause": self.cause,
            "shift": self.shift,
            "limit": _jsonable(self.limit),
            "band": {"method": self.band.method, "first": self.limits[0], "last": self.limits[-1]},
            "mean_error": _jsonable(self.mean_error),
            "max_error": _jsonable(self.max_error),
            "max_error_step": self.max_error_step,
            "trend": _jsonable(self.trend),
            "common_steps": len(self.steps),
            "acceptance": [result.to_dict() for result in self.acceptance],
            "spikes": [spike.to_dict() for spike in self.spikes],
            "batches": None if self.order is None else self.order.to_dict(),
            "capture_steps": list(self.capture_steps) if self.capture_steps else None,
            "notes": list(self.notes),
            "reference": _jsonable_series(self.reference),
            "candidate": _jsonable_series(self.candidate),
        }

    def plot(self, width: int = 72, *, ascii_only: bool = False) -> str:
        """Both curves and their difference as text, ``width`` columns wide."""
        return plot_curves(self, width, ascii_only=ascii_only)


def _jsonable(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)


def _jsonable_series(series: Series) -> dict[str, Any]:
    return {
        "origin": series.origin,
        "steps": list(series.steps),
        "values": [_jsonable(value) for value in series.values],
    }


def shorten(notes: Sequence[str]) -> tuple[str, ...]:
    """Each note once, in their order."""
    return tuple(dict.fromkeys(notes))
