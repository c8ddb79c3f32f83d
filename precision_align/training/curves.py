"""Compares one scalar series of two runs: do the curves part beyond noise, at which step, and what to record next.

The loss is a weak witness: a fault under one percent in a bfloat16 run is invisible in it (facts/numerics.md 4.7) and
needs the recorded tensors. So a curve that stays in its band proves nothing, and the report says how wide the band was.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from precision_align.core.dtypes import Array
from precision_align.core.errors import NothingInCommon
from precision_align.training.acceptance import check_acceptance
from precision_align.training.bands import Band, choose_band, measure_scale, subtract_resolution, widen_band
from precision_align.training.batches import BatchOrder, compare_batches
from precision_align.training.captures import plan_capture
from precision_align.training.losses import LossReport, shorten
from precision_align.training.onset import Onset, find_onset
from precision_align.training.reading import Reading, SeriesSource, fetch_batches, is_dump_source, read_side
from precision_align.training.remarks import write_remarks
from precision_align.training.series import Series, pick_values
from precision_align.training.shifts import find_cause, find_shift, is_shifted_before
from precision_align.training.spikes import find_spikes

__all__ = ["LossReport", "compare_losses"]

_LARGEST = 1e99  # relative differences end here, so that sums and squares of them stay finite


def compare_losses(
    reference: SeriesSource,
    candidate: SeriesSource,
    *,
    name: str = "loss",
    band: float | str | None = None,
    repeats: Sequence[SeriesSource] = (),
    pattern: str | None = None,
    duplicates: str = "error",
    by: str | None = None,
    per_step: tuple[int, int] | None = None,
) -> LossReport:
    """Find the step where a series of two runs parts beyond noise.

    Each side is a path (dump, CSV, JSONL, JSON or trainer_state.json, TensorBoard event files, plain log) or (step,
    value) pairs; values are compared at the steps both have. ``band``: how wide noise may be, as a relative number or
    as the dtype both runs computed in ("float32", "bfloat16", "float16", "tf32", "hf32"); default: by the dumps'
    dtypes, else estimated. ``repeats``: further runs of the reference that should be equal to it, whose spread is
    measured; better than any estimate. ``pattern`` and ``duplicates``: see
    :func:`~precision_align.training.reading.read_series`. ``by``: another series of each run to count by instead of
    its steps, such as "consumed samples"; ``per_step``: or how much each side consumes a step, such as (512, 256)
    sequences, which their steps are multiplied by.

    Raises DumpNotFound, LogUnreadable, NothingInCommon, UsageError, Unavailable (event files without tensorboard);
    other errors of the dump reader pass through.
    """
    how = Reading(name, pattern, duplicates, by)
    factors = per_step or (1, 1)
    ours = read_side(reference, how, "reference", factors[0])
    theirs = read_side(candidate, how, "candidate", factors[1])
    again = [read_side(repeat, how, f"repeat {index}", factors[0]) for index, repeat in enumerate(repeats)]
    pair = _align(ours, theirs)
    chosen = choose_band(
        pair.steps,
        pair.differences,
        pair.resolution,
        (ours.precision, theirs.precision),
        band=band,
        repeats=[_subtract(pick_values(repeat, pair.steps) / pair.unit, pair.left, pair.scale) for repeat in again],
    )
    excess = subtract_resolution(pair.differences, pair.resolution)
    limits = widen_band(chosen, excess, pair.left)
    onset = find_onset(pair.steps, excess, _find_apart(pair.left, pair.right), chosen, limits)
    moved = _find_moved(pair, onset, limits)
    onset = moved or onset
    # a dump's records are read only where there is something to explain
    asked = onset is not None or bool(find_spikes(ours, theirs))
    batches = (fetch_batches(reference), fetch_batches(candidate)) if asked else ({}, {})
    notes = [*ours.notes, *theirs.notes, *(note for repeat in again for note in repeat.notes)]
    notes += write_remarks(ours, theirs, again, pair.steps, excess, chosen, limits, onset)
    if moved is not None:
        notes.append(
            "the curves are moved from the first common step on: if one side counts its steps from 0 and the other "
            "from 1, or only one logged its first step, that is all, and the steps must be numbered alike"
        )
    own_steps = is_dump_source(reference) or is_dump_source(candidate)
    return _build_report(ours, theirs, pair, chosen, limits, onset, batches, by or "step", own_steps, notes)


@dataclass(frozen=True)
class _Pair:
    """Both curves on their common steps: float64 arrays of one length, values divided by ``unit``."""

    steps: Array
    left: Array
    right: Array
    unit: float
    scale: Array
    differences: Array
    resolution: Array


def _align(ours: Series, theirs: Series) -> _Pair:
    steps = _find_common_steps(ours, theirs)
    unit = _choose_unit(ours, theirs)
    left, right = pick_values(ours, steps) / unit, pick_values(theirs, steps) / unit
    scale = measure_scale(left)
    printed = pick_values(ours, steps, ours.resolve()) + pick_values(theirs, steps, theirs.resolve())
    resolution = (printed / unit / scale).clip(0, _LARGEST)
    return _Pair(steps, left, right, unit, scale, _subtract(right, left, scale), resolution)


def _find_common_steps(reference: Series, candidate: Series) -> Array:
    common = sorted(set(reference.steps) & set(candidate.steps))
    if not common:
        raise NothingInCommon(
            f"{reference.origin} (steps {_span(reference)}) and {candidate.origin} (steps {_span(candidate)}) have no "
            "step in common. If their batch sizes differ, count by what was consumed (--by 'consumed samples', or "
            "--per-step); an offset must be taken out first"
        )
    return np.asarray(common, dtype=np.int64)


def _span(series: Series) -> str:
    return f"{series.steps[0]} to {series.steps[-1]}, {len(series.steps)} values"


def _subtract(candidate: Array, reference: Array, scale: Array) -> Array:
    with np.errstate(invalid="ignore", over="ignore"):
        difference = ((candidate - reference) / scale).clip(-_LARGEST, _LARGEST)
    return np.where(np.isfinite(candidate) & np.isfinite(reference), difference, np.nan)


def _choose_unit(*sides: Series) -> float:
    """1, or for values near the end of float64 a power of two that leaves room to add and square them."""
    largest = max((abs(value) for side in sides for value in side.values if math.isfinite(value)), default=0.0)
    return 2.0 ** (math.frexp(largest)[1] - 1) if largest > _LARGEST else 1.0


def _find_apart(reference: Array, candidate: Array) -> Array:
    """Where one side is not finite and the other is, or both are in different ways."""
    both = np.isfinite(reference) & np.isfinite(candidate)
    same = (reference == candidate) | (np.isnan(reference) & np.isnan(candidate))
    return np.asarray(~both & ~same)


def _is_even(steps: Array) -> bool:
    return len(steps) > 2 and len(set(np.diff(steps).tolist())) == 1


def _build_report(
    reference: Series,
    candidate: Series,
    pair: _Pair,
    band: Band,
    limits: Array,
    onset: Onset | None,
    batches: Sequence[Mapping[int, str]],
    axis: str,
    own_steps: bool,
    notes: Sequence[str],
) -> LossReport:
    magnitudes = np.abs(pair.differences)
    known = np.isfinite(magnitudes)
    worst = int(np.nanargmax(magnitudes)) if known.any() else 0
    order = compare_batches(*batches)
    cause, shift = _find_cause(pair, onset, order)
    shown = limits + pair.resolution
    return LossReport(
        name=reference.name,
        axis=axis,
        reference=reference,
        candidate=candidate,
        steps=tuple(pair.steps.tolist()),
        differences=tuple(pair.differences.tolist()),
        band=band,
        limits=tuple(shown.tolist()),
        limit=float(shown[-1]) if onset is None else onset.limit + float(pair.resolution[onset.index]),
        onset=None if onset is None else int(pair.steps[onset.index]),
        kind="" if onset is None else onset.kind,
        cause=cause,
        shift=shift,
        order=order,
        spikes=find_spikes(reference, candidate, batches),
        mean_error=float(magnitudes[known].mean()) if known.any() else math.nan,
        max_error=float(magnitudes[worst]),
        max_error_step=int(pair.steps[worst]),
        trend=_fit_trend(pair.steps, pair.differences, onset.index if onset else 0),
        acceptance=check_acceptance(reference.name, pair.left * pair.unit, pair.right * pair.unit),
        capture=plan_capture(pair.steps, onset, counted_from_zero=own_steps) if axis == "step" else None,
        notes=shorten(notes),
    )


def _find_cause(pair: _Pair, onset: Onset | None, order: BatchOrder | None) -> tuple[str, int | None]:
    """(cause, shift in logged steps): the batches' fingerprints decide where they are known, else the curves."""
    if onset is None:
        return "", None
    if order is not None and order.kind != "same" and order.step is not None and order.step <= pair.steps[onset.index]:
        return ("other data" if order.kind == "other" else "data order"), order.shift
    left, right = pair.left[onset.index :], pair.right[onset.index :]
    shift = find_shift(left, right) if _is_even(pair.steps) else None
    if shift is not None and order is None:
        return "data order", shift
    return "numerical" if order is not None else find_cause(left, right), None


def _find_moved(pair: _Pair, onset: Onset | None, limits: Array) -> Onset | None:
    """The first step, where the candidate is the reference moved by some steps from there on.

    The scatter of the batches, which then is all the difference there is, passes for noise.
    """
    shift = find_shift(pair.left, pair.right) if _is_even(pair.steps) else None
    end = len(pair.steps) if onset is None else onset.index
    if shift is None or not is_shifted_before(pair.left, pair.right, shift, end):
        return None
    return Onset(0, "jump", float(limits[0]))


def _fit_trend(steps: Array, differences: Array, start: int) -> float:
    """Least-squares slope of the relative difference per step from ``start`` on; 0 for fewer than three points."""
    known = np.isfinite(differences[start:])
    x, y = steps[start:][known].astype(np.float64), differences[start:][known]
    if len(x) < 3:
        return 0.0
    x = x - x.mean()
    return float((x * (y - y.mean())).sum() / (x * x).sum())
