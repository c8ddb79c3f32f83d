"""How far two equal runs may lie apart: the noise band of a curve.

All differences and limits here are relative: (candidate - reference) / scale, where the scale of a step is |reference|,
but not less than the median |reference| of the steps around it, so that a curve through zero has no infinite errors.

Without repeated runs the limit at a step is the widest of three:

* A law, c * sqrt(1 + updates since the first common step): round-off perturbs each update a little, and perturbations
  of independent sign add up like a random walk. c is 16 u for float32 (u = 2^-24: 1e-6) and u / 4 for 16-bit formats
  (bfloat16: 1e-3). Measured on a small GPT (facts/numerics.md 4.7): float32 within 1e-6 for 240 steps, bfloat16 from
  1e-4 at the first step to 4e-3 at the 120th. The law stops growing at 2 %.
* Three times the largest difference of the 16 steps before: long runs are chaotic, and their differences outgrow any
  law while staying free of a trend. A fault shows as a jump against this past, or as a lasting one-sided difference.
* Four times the 90th percentile of the 128 steps before, so that a quiet stretch of wandering noise is no new level.

Where nothing says which dtype the runs computed in, the law is float32's, widened where the first five common steps
agree to float32 round-off (16-bit runs do so by chance less than once in 10^5), and for the first 32 steps, whose past
is too short to have shown the noise, c is eight times the median difference of the first eight common steps, at most
1e-2, and 1e-2 where there are fewer than five of them; that law stops growing at 3 c. Noise is not estimated to be
less than the printed digits hide: what they swallow at most steps exceeds them at some. An
offset from the first step on is found apart from this: see :func:`~precision_align.training.onset.find_onset`. How
often clean curves of several kinds of noise part, and which faults are found, is measured by
tests/benchmarks/loss_onsets.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from precision_align.core.dtypes import DTYPES, Array
from precision_align.core.errors import UsageError

ENVELOPE_FACTOR = 3.0  # of the largest difference seen in equal runs; no false alarm in facts 4.7
ENVELOPE_REACH = 6  # steps on each side over which a repeated run's difference counts: a late crossing hides the spread
PAST = 16  # steps of the candidate's own past that widen the band
LONG_PAST = 128  # steps whose 90th percentile does: six times the wandering of twenty steps that noise was seen with
QUANTILE = 0.9  # of them: one step in ten may be a spike without making the limit blind
QUANTILE_FACTOR = 4.0  # of it: with three, one of 27,000 clean pairs of tests/benchmarks/loss_onsets.py parted
START = 32  # steps whose past is too short: noise that wanders over twenty steps has not come round in it
START_GROWTH = 3.0  # more would hide faults there; from the 16th step on the past is the better guide
START_LIMIT = 1e-2  # what the first steps' own scatter is believed to be at most; bfloat16's is 1e-4 to 1e-3
FIRST = 5  # steps that show float32 by agreeing to its round-off
JUMP_LIMIT = 100.0  # by which a jump of the reference widens the band at most
EARLY = 8  # steps the law is estimated from where they do not
LAW_LIMIT = 0.02  # two lasting percent are never round-off: the common acceptance rule for long trainings is 1 %
RESOLVED = 2e-5  # printed digits that show bfloat16's first 1e-4, so that agreement in them tells float32
_SINGLE = 16 * DTYPES["float32"].roundoff
_HALF_SHARE = 0.25


@dataclass(frozen=True)
class Band:
    """The noise band at each common step.

    ``law``: relative limits, float64, one a common step; ``resolution``: relative half unit of the printed digits of
    both sides, which explains as much of a difference at each step whatever the noise; ``adaptive``: whether the past
    may widen the law; ``method``: how it was found, in words; ``precision``: the dtype it holds for, "" for a measured,
    estimated or given band.
    """

    law: Array
    resolution: Array
    adaptive: bool
    method: str
    precision: str = ""


def law_constant(precision: str) -> float:
    """c of the round-off law of one dtype. Raises UsageError for a dtype without one."""
    name = "float16" if precision in ("tf32", "hf32") else precision  # 11 significant bits, as float16
    if name in ("float32", "float64"):
        return 16 * DTYPES[name].roundoff
    if name in ("float16", "bfloat16"):
        return _HALF_SHARE * DTYPES[name].roundoff
    raise UsageError(
        f"no noise band is known for {precision!r}; give float32, float64, bfloat16, float16, tf32, hf32 or a number"
    )


def roundoff_law(constant: float, steps: Array) -> Array:
    """c * sqrt(1 + updates since the first step), at most LAW_LIMIT; steps: ascending int64."""
    return np.asarray(np.minimum(constant * np.sqrt(1.0 + (steps - steps[0])), LAW_LIMIT))


def measure_scale(reference: Array) -> Array:
    """What differences are divided by: |reference|, but not less than the median of the 17 values around each.

    float64 in and out; non-finite values are passed over; 1 where nothing finite and non-zero is near.
    """
    magnitude = np.where(np.isfinite(reference), np.abs(reference), np.nan)
    half = 8
    padded = np.pad(magnitude, half, constant_values=np.nan)
    windows = np.lib.stride_tricks.sliding_window_view(padded, 2 * half + 1)
    seen = np.isfinite(windows).any(axis=1)
    level = np.zeros_like(magnitude)
    level[seen] = np.nanmedian(windows[seen], axis=1)
    scale = np.fmax(magnitude, level)
    return np.where(scale > 0, scale, 1.0)


def choose_band(
    steps: Array,
    differences: Array,
    resolution: Array,
    precisions: Sequence[str],
    *,
    band: float | str | None,
    repeats: Sequence[Array],
) -> Band:
    """The band of two curves on their common steps.

    ``steps``: int64; ``differences``: relative, NaN where either side is not finite; ``resolution``: relative half unit
    of the printed digits of both sides; ``precisions``: the dtypes of both sides as far as known; ``band``: a relative
    limit, a dtype name, or None; ``repeats``: relative differences of repeated reference runs from the reference, NaN
    where they have no value. Raises UsageError.
    """
    if repeats and band is not None:
        raise UsageError("give either a band or repeated runs of the reference, not both")
    if repeats:
        return _measured_band(repeats, resolution)
    if isinstance(band, str):
        return Band(roundoff_law(law_constant(band), steps), resolution, True, f"{band} round-off, as given", band)
    if band is not None:
        return _given_band(band, steps, resolution)
    known = [precision for precision in precisions if precision]
    if known and len(known) == len(precisions):
        lowest = max(known, key=lambda precision: DTYPES[precision].roundoff)
        law = roundoff_law(law_constant(lowest), steps)
        return Band(law, resolution, True, f"{lowest} round-off; the dumps say so", lowest)
    return _estimated_band(steps, differences, resolution)


def _given_band(band: float, steps: Array, resolution: Array) -> Band:
    if not math.isfinite(band) or band <= 0:
        raise UsageError(f"the band is {band!r}; it must be a positive relative difference, such as 1e-3")
    return Band(np.full(len(steps), float(band)), resolution, adaptive=False, method=f"given: {band:g} relative")


def _estimated_band(steps: Array, differences: Array, resolution: Array) -> Band:
    """The law where the dtype is not known: from the first common steps, for the rest from each step's past."""
    beyond = subtract_resolution(differences, resolution)
    early = np.abs(beyond[:EARLY])
    early = early[np.isfinite(early)]
    typical = 8 * float(np.median(early)) if early.size else 0.0
    if early.size >= FIRST and (early[:FIRST] <= _SINGLE).all() and (resolution[:FIRST] <= RESOLVED).all():
        constant = float(np.clip(typical, _SINGLE, 16 * _SINGLE))
        method = f"float32 round-off; the first {FIRST} common steps agree to it"
        return Band(np.maximum(roundoff_law(constant, steps), _hide(resolution)), resolution, True, method)
    law = roundoff_law(16 * _SINGLE, steps)
    constant = float(np.clip(typical, _SINGLE, START_LIMIT)) if early.size >= FIRST else START_LIMIT
    growth = np.sqrt(1.0 + (steps[:START] - steps[0])).clip(max=START_GROWTH)
    law[:START] = np.maximum(law[:START], np.minimum(constant * growth, LAW_LIMIT))
    return Band(
        np.maximum(law, _hide(resolution)), resolution, True, "estimated from the differences of the steps before each"
    )


def _hide(resolution: Array) -> Array:
    """How large noise may be that the printed digits do not show: their resolution, twice it before it has grown."""
    hidden = resolution.copy()
    hidden[:START] *= 2
    return hidden


def _measured_band(repeats: Sequence[Array], resolution: Array) -> Band:
    stacked = np.abs(np.stack(repeats))
    largest = np.where(np.isnan(stacked), 0.0, stacked).max(axis=0)
    width = 2 * ENVELOPE_REACH + 1
    padded = np.pad(largest, ENVELOPE_REACH, mode="edge")
    envelope = np.lib.stride_tricks.sliding_window_view(padded, width).max(axis=1)
    # the maximum of few draws is low: sqrt(4 / n) more for fewer than the four runs behind the factor of three
    factor = ENVELOPE_FACTOR * math.sqrt(max(1.0, 4 / len(repeats)))
    floor = 4 * DTYPES["float32"].roundoff
    method = f"{factor:.3g} times the spread of {len(repeats)} repeated reference run{'s' if len(repeats) > 1 else ''}"
    return Band(np.maximum(factor * envelope, floor), resolution, adaptive=False, method=method)


def subtract_resolution(differences: Array, resolution: Array) -> Array:
    """What the printed digits do not explain of each difference: its sign and the excess over them, float64."""
    return np.asarray(np.sign(differences) * np.maximum(np.abs(differences) - resolution, 0.0))


def widen_band(band: Band, differences: Array, reference: Array) -> Array:
    """The limit at each step: the law, widened by the candidate's past and by jumps of the reference itself.

    ``differences``: what the printed digits do not explain, relative. A step at which the reference jumps by more than
    three times its usual change amplifies any noise: its limit is widened by as much.
    """
    if not band.adaptive:
        return band.law
    magnitudes = np.abs(differences)
    past = np.maximum(ENVELOPE_FACTOR * _past_maximum(magnitudes), QUANTILE_FACTOR * _past_quantile(magnitudes))
    return np.asarray(np.maximum(band.law, past) * _reference_jumps(reference))


def _past_maximum(magnitudes: Array) -> Array:
    """The largest finite value of the PAST steps before each; 0 at the first."""
    finite = np.where(np.isfinite(magnitudes), magnitudes, 0.0)
    padded = np.concatenate([np.zeros(PAST), finite[:-1]])
    return np.asarray(np.lib.stride_tricks.sliding_window_view(padded, PAST).max(axis=1))


def _past_quantile(magnitudes: Array) -> Array:
    """The 90th percentile of the finite values of LONG_PAST steps before each; 0 where fewer than PAST are."""
    padded = np.concatenate([np.full(LONG_PAST, np.nan), np.where(np.isfinite(magnitudes), magnitudes, np.nan)[:-1]])
    ordered = np.sort(np.lib.stride_tricks.sliding_window_view(padded, LONG_PAST), axis=1)  # NaN last
    count = np.isfinite(ordered).sum(axis=1)
    picked = ordered[np.arange(len(ordered)), np.maximum(np.ceil(QUANTILE * count).astype(int) - 1, 0)]
    return np.asarray(np.where(count >= PAST, picked, 0.0))


def _reference_jumps(reference: Array) -> Array:
    """How unusual each change of the reference is: |change| / (3 robust deviations of the past), 1 to JUMP_LIMIT."""
    finite = np.where(np.isfinite(reference), reference, np.nan)
    changes = np.abs(np.diff(finite, prepend=finite[:1]))
    changes = np.where(np.isfinite(changes), changes, 0.0)
    padded = np.concatenate([np.full(PAST, np.nan), changes[:-1]])
    windows = np.lib.stride_tricks.sliding_window_view(padded, PAST)
    usual = np.full(len(changes), np.nan)
    enough = np.isfinite(windows).sum(axis=1) >= EARLY
    usual[enough] = np.nanmedian(windows[enough], axis=1) / 0.6745  # the median of |N(0, 1)|
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        ratio = changes / (3 * usual)
    return np.where(np.isfinite(ratio), ratio.clip(1.0, JUMP_LIMIT), 1.0)
