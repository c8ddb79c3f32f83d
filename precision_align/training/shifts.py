"""Data order or arithmetic: what the changes of two curves from step to step say.

Each batch has a difficulty of its own, which both curves show as long as both runs see the same batches: arithmetic
moves the level, and leaves the changes alike.
"""

from __future__ import annotations

import numpy as np

from precision_align.core.dtypes import Array

_SHIFTS = 8  # steps of shift tried, each way
_POINTS = 24  # changes a correlation needs so that 0.9 is no chance
_FOLLOWS = 0.9  # correlation over which one curve's changes are the other's
_STRAYS = 0.3  # and under which they are not: for independent changes, 24 of them, more than that is rarer than 8 %
_ALIKE = 1.5  # ratio of the changes' sizes up to which both show the scatter of batches, and no added one


def find_shift(reference: Array, candidate: Array) -> int | None:
    """By how many steps the candidate's curve is the reference's moved; None where it is not.

    The candidate's changes must follow the shifted reference's with a correlation over 0.9 and not the unshifted one's
    (under 0.5). Positive: the candidate sees the batches that many steps earlier. Both arrays float64 of one length, on
    common, evenly spaced steps.
    """
    if len(reference) <= _POINTS + _SHIFTS or not np.isfinite([reference, candidate]).all():
        return None
    left, right = np.diff(reference), np.diff(candidate)
    if _correlate(left, right) > 0.5:
        return None
    scores = {shift: _correlate_shifted(left, right, shift) for shift in range(-_SHIFTS, _SHIFTS + 1) if shift}
    best = max(scores, key=lambda shift: scores[shift])
    return best if scores[best] > _FOLLOWS else None


def is_shifted_before(reference: Array, candidate: Array, shift: int, end: int) -> bool:
    """Whether the candidate is nearer to the reference moved by ``shift`` than to the reference, in all before ``end``.

    Where there is nothing before, nothing speaks against it. ``shift``: as :func:`find_shift` gives it; ``end``: an
    index; both arrays float64 of one length.
    """
    places = np.arange(end)
    places = places[(places + shift >= 0) & (places + shift < len(reference))]
    moved = float(np.abs(candidate[places] - reference[places + shift]).sum())
    return moved <= 0.5 * float(np.abs(candidate[places] - reference[places]).sum())


def find_cause(reference: Array, candidate: Array) -> str:
    """Why the curves part: "numerical" where the candidate's changes follow the reference's, else maybe "other data".

    "other data" where they stray and are as large; "" where the curves are too short or too noisy to tell: added noise
    makes changes stray too, but larger. Both arrays float64 of one length.
    """
    known = np.isfinite(reference) & np.isfinite(candidate)
    left, right = np.diff(reference[known]), np.diff(candidate[known])
    if len(left) < _POINTS:
        return ""
    score = _correlate(left, right)
    if score > _FOLLOWS:
        return "numerical"
    sizes = sorted(float(np.median(np.abs(side))) for side in (left, right))
    return "other data" if score < _STRAYS and sizes[0] > 0 and sizes[1] < _ALIKE * sizes[0] else ""


def _correlate_shifted(left: Array, right: Array, shift: int) -> float:
    if shift > 0:
        return _correlate(left[shift:], right[:-shift])
    return _correlate(left[:shift], right[-shift:])


def _correlate(left: Array, right: Array) -> float:
    left, right = left - left.mean(), right - right.mean()
    size = float(np.sqrt((left * left).sum() * (right * right).sum()))
    return float((left * right).sum()) / size if size else 0.0
