"""The step where two curves part: the first that leaves the band and stays out, or a jump no noise explains."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from precision_align.core.dtypes import DTYPES, Array
from precision_align.training.bands import LAW_LIMIT, Band, law_constant, roundoff_law

WINDOW = 8  # steps looked at from a suspected onset on
ENOUGH = 5  # of them outside the band: facts/numerics.md 4.7 (no false alarm on two benign runs, exact onsets)
JUMP = 5.0  # times the band: a single step this far out counts by itself; benign spikes stayed under 3
# Times the change from step to step in LASTING steps, more in fewer: noise that only wanders over twenty steps exceeds
# 20 less than once in 10^4, and noise that is a fifth white, as any batch's, exceeds 8 less than once in 10^4.
OFFSET = 20.0
LASTING = 32  # steps of one sign that make a slow drift; by chance 2^-26 even with the exceptions allowed
EXCEPTIONS = 2  # steps of the other sign among them
DRIFT = 3.0  # times the bfloat16 law: what no measured benign run kept to one side


@dataclass(frozen=True)
class Onset:
    """Where and how two curves part.

    ``index``: into the common steps; ``kind``: "not a number" (on one side only), "jump" (leaves the band within a step
    and stays), "spike" (a jump that comes back), "drift" (slow and one-sided); ``duration``: steps until a spike is
    back in the band, else 0; ``limit``: the band at the onset, relative.
    """

    index: int
    kind: str
    limit: float
    duration: int = 0


def find_onset(steps: Array, differences: Array, apart: Array, band: Band, limits: Array) -> Onset | None:
    """The first onset of any kind.

    ``differences``: what the printed digits do not explain, relative, NaN where a side is not finite; ``apart``: bool,
    where exactly one side is not finite or both are, differently; ``limits``: the band at each step as
    :func:`~precision_align.training.bands.widen_band` makes it.
    """
    magnitudes = np.where(np.isfinite(differences), np.abs(differences), 0.0)
    magnitudes[apart] = np.inf
    found = [
        onset
        for onset in (
            _find_jump(magnitudes, limits, apart),
            _find_lasting(magnitudes, limits, band),
            _find_offset(differences, band),
        )
        if onset is not None
    ]
    first = min(found, key=lambda onset: onset.index) if found else None
    before = slice(None if first is None else first.index)  # what jumps is no drift
    return _find_drift(steps[before], differences[before], limits[before], band) or first


def _find_jump(magnitudes: Array, limits: Array, apart: Array) -> Onset | None:
    out = np.flatnonzero(magnitudes > JUMP * limits)
    if not out.size:
        return None
    index = int(out[0])
    limit = float(limits[index])
    if apart[index]:
        return Onset(index, "not a number", limit)
    ahead = magnitudes[index : index + WINDOW] > limit
    if ahead.sum() >= min(ENOUGH, len(ahead)):
        return Onset(index, "jump", limit)
    return Onset(index, "spike", limit, duration=int(np.argmin(ahead)))


def _find_lasting(magnitudes: Array, limits: Array, band: Band) -> Onset | None:
    """The first step outside the limit where ENOUGH of WINDOW steps are, the past held at the window's start.

    Held, because a slow rise would widen its own limit. Curves shorter than ENOUGH part where every step is outside.
    """
    padding = np.zeros(WINDOW - 1)
    windows = np.lib.stride_tricks.sliding_window_view
    frozen = np.maximum(limits[:, None], windows(np.concatenate([band.law, padding]), WINDOW))
    outside = windows(np.concatenate([magnitudes, padding]), WINDOW) > frozen
    hits = np.flatnonzero(outside.sum(axis=1) >= min(ENOUGH, len(magnitudes)))
    if not hits.size:
        return None
    start = int(hits[0])
    return Onset(start + int(outside[start].argmax()), "jump", float(limits[start]))


def _find_offset(differences: Array, band: Band) -> Onset | None:
    """A difference of one size from the first step on, which no limit taken from the first steps would show.

    Noise scatters: even noise that wanders over twenty steps stays under OFFSET times its own change from step to step,
    while a fault that acts from the first step on changes each batch's loss by about as much.
    """
    start = differences[:LASTING]
    start = start[np.isfinite(start)]
    if band.precision or not band.adaptive or len(start) < WINDOW:
        return None
    level = float(np.median(start))
    scatter = float(np.median(np.abs(np.diff(start)))) / (0.6745 * 2**0.5)  # the median of |N(0, 1)|, of a difference
    offset = OFFSET * LASTING / len(start)
    limit = max(offset * scatter, float(band.resolution[:LASTING].max()), OFFSET * DTYPES["float32"].roundoff)
    if abs(level) <= limit:
        return None
    index = int(np.flatnonzero(np.abs(differences) > abs(level) / 2)[0])
    return Onset(index, "jump", limit)


def _find_drift(steps: Array, differences: Array, limits: Array, band: Band) -> Onset | None:
    """A lasting one-sided difference beyond what any precision explains; its onset is where that side began."""
    if not band.adaptive or len(differences) < LASTING:
        return None
    known = np.where(np.isfinite(differences), differences, 0.0)
    coarse = DRIFT * roundoff_law(law_constant("bfloat16"), steps)
    limit = np.minimum(np.maximum(band.law[: len(steps)], coarse), LAW_LIMIT)
    windows = np.lib.stride_tricks.sliding_window_view
    for side in (1.0, -1.0):
        agreeing = windows((side * known > 0).astype(np.int64), LASTING).sum(axis=1) >= LASTING - EXCEPTIONS
        middle = np.median(windows(side * known - limit, LASTING), axis=1)
        hits = np.flatnonzero(agreeing & (middle > 0))
        if hits.size:
            index = _walk_back(side * known, limits, int(hits[0]))
            return Onset(index, "drift", float(limits[index]))
    return None


def _walk_back(sided: Array, limits: Array, start: int) -> int:
    """The first step of the one-sided stretch around ``start`` that is outside the limit the stretch began with."""
    index = start
    while index > 0 and (sided[max(0, index - WINDOW) : index] > 0).mean() >= 0.75:
        index -= 1
    outside = np.flatnonzero(sided[index:] > limits[index])
    return index + int(outside[0]) if outside.size else start
