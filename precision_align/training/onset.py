"""The step where two curves part: the first that leaves the band and stays out, or a jump no noise explains."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from precision_align.core.dtypes import Array
from precision_align.training.bands import Band, law_constant, roundoff_law, widen_band

WINDOW = 8  # steps looked at from a suspected onset on
ENOUGH = 5  # of them outside the band: facts/numerics.md 4.7 (no false alarm on two benign runs, exact onsets)
JUMP = 10.0  # times the band: a single step this far out counts by itself; benign spikes stayed under 3
LASTING = 32  # steps of one sign that make a slow drift; by chance 2^-26 even with the exceptions allowed
EXCEPTIONS = 2  # steps of the other sign among them
DRIFT = 3.0  # times the bfloat16 law: what no measured benign run kept to one side
_SHIFTS = 8  # steps of shift tried, each way
_SHIFT_POINTS = 24  # changes a correlation needs so that 0.9 is no chance


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


def find_onset(steps: Array, reference: Array, differences: Array, apart: Array, band: Band) -> Onset | None:
    """The first onset of any kind.

    ``differences``: relative, NaN where a side is not finite; ``apart``: bool, where exactly one side is not finite or
    both are, differently.
    """
    limits = widen_band(band, differences, reference)
    magnitudes = np.where(np.isfinite(differences), np.abs(differences), 0.0)
    magnitudes[apart] = np.inf
    found = [
        onset
        for onset in (
            _find_jump(magnitudes, limits, apart),
            _find_lasting(magnitudes, limits, band),
            _find_drift(steps, differences, band),
        )
        if onset is not None
    ]
    return min(found, key=lambda onset: onset.index) if found else None


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
    """The first step outside its limit with ENOUGH of WINDOW steps outside it, the past held at that step's."""
    for index in np.flatnonzero(magnitudes > limits):
        ahead = slice(int(index), int(index) + WINDOW)
        frozen = np.maximum(limits[index], band.law[ahead])
        if (magnitudes[ahead] > frozen).sum() >= ENOUGH:
            return Onset(int(index), "jump", float(limits[index]))
    return None


def _find_drift(steps: Array, differences: Array, band: Band) -> Onset | None:
    """A lasting one-sided difference beyond what any precision explains; its onset is where that side began."""
    if not band.adaptive or len(differences) < LASTING:
        return None
    known = np.where(np.isfinite(differences), differences, 0.0)
    coarse = DRIFT * roundoff_law(law_constant("bfloat16"), steps)
    limit = np.minimum(np.maximum(band.law, coarse), 0.02)
    windows = np.lib.stride_tricks.sliding_window_view
    for side in (1.0, -1.0):
        agreeing = windows((side * known > 0).astype(np.int64), LASTING).sum(axis=1) >= LASTING - EXCEPTIONS
        middle = np.median(windows(side * known - limit, LASTING), axis=1)
        hits = np.flatnonzero(agreeing & (middle > 0))
        if hits.size:
            index = _walk_back(side * known, band.law, int(hits[0]))
            return Onset(index, "drift", float(band.law[index]))
    return None


def _walk_back(sided: Array, law: Array, start: int) -> int:
    """The first step of the one-sided stretch around ``start`` that is outside the law."""
    index = start
    while index > 0 and (sided[max(0, index - WINDOW) : index] > 0).mean() >= 0.75:
        index -= 1
    outside = np.flatnonzero(sided[index:] > law[index:])
    return index + int(outside[0])


def find_shift(reference: Array, candidate: Array) -> int | None:
    """By how many steps the candidate's curve is the reference's moved; None where it is not.

    Compares changes from step to step, which carry each batch's own difficulty: the candidate's must follow the shifted
    reference's with a correlation over 0.9 and not the unshifted one's (under 0.5). Positive: the candidate sees the
    batches that many steps earlier. Both arrays float64 of one length, on common, evenly spaced steps.
    """
    if len(reference) <= _SHIFT_POINTS + _SHIFTS or not np.isfinite([reference, candidate]).all():
        return None
    left, right = np.diff(reference), np.diff(candidate)
    if _correlate(left, right) > 0.5:
        return None
    scores = {shift: _correlate_shifted(left, right, shift) for shift in range(-_SHIFTS, _SHIFTS + 1) if shift}
    best = max(scores, key=lambda shift: scores[shift])
    return best if scores[best] > 0.9 else None


def _correlate_shifted(left: Array, right: Array, shift: int) -> float:
    if shift > 0:
        return _correlate(left[shift:], right[:-shift])
    return _correlate(left[:shift], right[-shift:])


def _correlate(left: Array, right: Array) -> float:
    left, right = left - left.mean(), right - right.mean()
    size = float(np.sqrt((left * left).sum() * (right * right).sum()))
    return float((left * right).sum()) / size if size else 0.0
