"""Steps at which one curve jumps up and comes back: a batch to look at, or an overflow."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from precision_align.core.dtypes import Array
from precision_align.training.series import Series

PAST = 32  # changes from step to step that tell the scatter
LEAST = 8  # steps that tell the level, and changes that must be there: fewer tell no scatter
DEVIATIONS = 8.0  # robust ones above the past's median: a normal scatter reaches that less than once in 10^14 steps
LEAST_RISE = 0.05  # of the level: under five percent nobody calls it a spike, however quiet the curve was
_SHOWN = 8


@dataclass(frozen=True)
class Spike:
    """One jump of a curve.

    ``rise``: the value over the median of the steps before it, less 1; ``sides``: whose curves jump there; ``batch``:
    the fingerprint of the input batch of each side, where its dump has one; ``same_batch``: whether both sides saw the
    same one, None where that is not known.
    """

    step: int
    rise: float
    sides: tuple[str, ...]
    batch: tuple[str, ...] = ()
    same_batch: bool | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {**asdict(self), "sides": list(self.sides), "batch": list(self.batch)}


def find_spikes(
    reference: Series,
    candidate: Series,
    batches: Sequence[Mapping[int, str]] = ({}, {}),
) -> tuple[Spike, ...]:
    """The largest spikes of both curves, by step. ``batches``: step -> fingerprint of each side, as far as known.

    A side that jumps at the same step by half of what makes a spike counts as jumping too.
    """
    rises = [_measure_rises(series) for series in (reference, candidate)]
    steps = {step for series, (_, share) in zip((reference, candidate), rises) for step in _find_starts(series, share)}
    found = {step: _collect(step, (reference, candidate), rises) for step in steps}
    largest = sorted(found, key=lambda step: -max(found[step].values()))[:_SHOWN]
    return tuple(_describe(step, found[step], batches) for step in sorted(largest))


def _collect(step: int, sides: Sequence[Series], rises: Sequence[tuple[Array, Array]]) -> dict[str, float]:
    found = {}
    for role, series, (rise, share) in zip(("reference", "candidate"), sides, rises):
        place = bisect_left(series.steps, step)
        if place < len(series.steps) and series.steps[place] == step and share[place] > 0.5:
            found[role] = float(rise[place])
    return found


def _describe(step: int, rises: Mapping[str, float], batches: Sequence[Mapping[int, str]]) -> Spike:
    prints = [side.get(step, "") for side in batches]
    same = prints[0] == prints[1] if all(prints) else None
    batch = tuple(dict.fromkeys(text for text in prints if text))
    return Spike(step, max(rises.values()), tuple(rises), batch, same)


def _measure_rises(series: Series) -> tuple[Array, Array]:
    """(rise above the level before, its share of what makes a spike) of each value; 0 where that is not known."""
    values: Array = np.asarray(series.values, dtype=np.float64)
    values = np.where(np.isfinite(values), values, np.nan)
    level = _median_before(values, LEAST)  # short, so that a trend leaves it near
    scatter = _median_before(np.abs(np.diff(values, prepend=np.nan)), PAST) / (0.6745 * 2**0.5)  # of N(0, 1)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        rise = values / level - 1
        share = (values - level) / np.maximum(DEVIATIONS * scatter, LEAST_RISE * np.abs(level))
    known = np.isfinite(rise) & np.isfinite(share) & (level > 0)
    return np.where(known, rise, 0.0), np.where(known, share, 0.0)


def _median_before(values: Array, past: int) -> Array:
    """The median of the finite values among so many before each; NaN where they are fewer than LEAST."""
    windows = np.lib.stride_tricks.sliding_window_view(np.concatenate([np.full(past, np.nan), values[:-1]]), past)
    known = np.isfinite(windows).sum(axis=1) >= LEAST
    medians = np.full(len(values), np.nan)
    medians[known] = np.nanmedian(windows[known], axis=1)
    return medians


def _find_starts(series: Series, share: Array) -> list[int]:
    """The first step of each stretch of spikes: a curve that stays up has changed its level, once."""
    high = np.flatnonzero(share > 1)
    return [series.steps[index] for index in high[np.diff(high, prepend=-2) > 1].tolist()]
