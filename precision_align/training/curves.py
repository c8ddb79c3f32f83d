"""Compares one scalar series of two runs: do the curves part beyond noise, at which step, and what to record next.

The loss is a weak witness: a fault under one percent in a bfloat16 run is invisible in it (facts/numerics.md 4.7) and
needs the recorded tensors. So a curve that stays in its band proves nothing, and the report says how wide the band was.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from precision_align.core.dtypes import Array
from precision_align.core.errors import NothingInCommon
from precision_align.core.results import Curve
from precision_align.training.bands import Band, choose_band, measure_scale
from precision_align.training.onset import Onset, find_onset, find_shift
from precision_align.training.plots import plot_curves
from precision_align.training.reading import SeriesSource, read_series
from precision_align.training.remarks import write_remarks
from precision_align.training.series import Series, pick_values

_LARGEST = 1e99  # relative differences end here, so that sums and squares of them stay finite


@dataclass(frozen=True)
class LossReport:
    """What became of two curves.

    ``name``: the series; ``reference`` and ``candidate``: both as read; ``steps``: the common ones; ``differences``:
    (candidate - reference) / scale at each, NaN where a side is not finite (scale: see
    :mod:`~precision_align.training.bands`); ``band``: how wide noise may be; ``limit``: the relative limit at the
    onset, else the law's at the last common step; ``onset``: the step where they part, or None; ``kind``: "jump",
    "drift", "spike", "not a number" or ""; ``shift``: the candidate sees the reference's batches this many logged steps
    earlier, or None; ``mean_error`` and ``max_error``: of |difference|, with the step of the largest; ``trend``: change
    of the difference per step (least squares after the onset, else over all); ``capture_steps``: first and last step to
    record next, or None; ``notes``: what was assumed, merged, left out.
    """

    name: str
    reference: Series
    candidate: Series
    steps: tuple[int, ...]
    differences: tuple[float, ...]
    band: Band
    limit: float
    onset: int | None
    kind: str
    shift: int | None
    mean_error: float
    max_error: float
    max_error_step: int
    trend: float
    capture_steps: tuple[int, int] | None
    notes: tuple[str, ...]

    @property
    def parted(self) -> bool:
        """Whether the curves part beyond their noise."""
        return self.onset is not None

    def to_curve(self) -> Curve:
        """The curve for a comparison's report."""
        return Curve(
            name=self.name,
            reference=tuple(zip(self.reference.steps, self.reference.values)),
            candidate=tuple(zip(self.candidate.steps, self.candidate.values)),
            onset=self.onset,
            band=self.limit,
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON; numbers that are not finite become their names."""
        return {
            "name": self.name,
            "parted": self.parted,
            "onset": self.onset,
            "kind": self.kind,
            "shift": self.shift,
            "limit": self.limit,
            "band": {"method": self.band.method, "first": float(self.band.law[0]), "last": float(self.band.law[-1])},
            "mean_error": _jsonable(self.mean_error),
            "max_error": _jsonable(self.max_error),
            "max_error_step": self.max_error_step,
            "trend": _jsonable(self.trend),
            "common_steps": len(self.steps),
            "capture_steps": list(self.capture_steps) if self.capture_steps else None,
            "notes": list(self.notes),
            "reference": _jsonable_series(self.reference),
            "candidate": _jsonable_series(self.candidate),
        }

    def describe(self) -> str:
        """The result in a few lines of text: verdict, figures, what to do next, notes."""
        lines = [self._describe_verdict(), self._describe_figures(), f"band: {self.band.method}"]
        if self.capture_steps:
            first, last = self.capture_steps
            steps = f"{first}-{last}" if last > first else f"{first}"
            lines.append(f"next, on both sides: precision-align capture --steps {steps} -o DUMP -- train.py ...")
            lines.append("then: precision-align compare REFERENCE_DUMP CANDIDATE_DUMP")
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])

    def _describe_verdict(self) -> str:
        span = f"{len(self.steps)} common steps, {self.steps[0]} to {self.steps[-1]}"
        if self.onset is None:
            return f"{self.name}: the curves stay within their noise ({span}; band {self.limit:.1e} at the last)"
        difference = self.differences[self.steps.index(self.onset)]
        size = "not finite on one side" if math.isnan(difference) else f"{difference:+.2e} relative"
        return f"{self.name}: the curves part at step {self.onset} ({self.kind}: {size}, band {self.limit:.1e}; {span})"

    def _describe_figures(self) -> str:
        return (
            f"relative error: mean {self.mean_error:.2e}, largest {self.max_error:.2e} at step {self.max_error_step}, "
            f"trend {self.trend:+.1e} a step"
        )

    def plot(self, width: int = 72, *, ascii_only: bool = False) -> str:
        """Both curves and their difference as text, ``width`` columns wide."""
        return plot_curves(self, width, ascii_only=ascii_only)


def compare_losses(
    reference: SeriesSource,
    candidate: SeriesSource,
    *,
    name: str = "loss",
    band: float | str | None = None,
    repeats: Sequence[SeriesSource] = (),
    pattern: str | None = None,
    duplicates: str = "error",
) -> LossReport:
    """Find the step where a series of two runs parts beyond noise.

    Each side is a path (dump, CSV, JSONL, JSON or trainer_state.json, plain log) or (step, value) pairs; values are
    compared at the steps both have. ``band``: how wide noise may be, as a relative number or as the dtype both runs
    computed in ("float32", "bfloat16", "float16", "tf32", "hf32"); default: by the dumps' dtypes, else estimated.
    ``repeats``: further runs of the reference that should be equal to it, whose spread is measured; better than any
    estimate. ``pattern`` and ``duplicates``: see :func:`~precision_align.training.reading.read_series`.

    Raises DumpNotFound, LogUnreadable, NothingInCommon, UsageError; other errors of the dump reader pass through.
    """
    ours = read_series(reference, name, pattern=pattern, duplicates=duplicates, role="reference")
    theirs = read_series(candidate, name, pattern=pattern, duplicates=duplicates, role="candidate")
    again = [
        read_series(repeat, name, pattern=pattern, duplicates=duplicates, role=f"repeat {index}")
        for index, repeat in enumerate(repeats)
    ]
    steps = _find_common_steps(ours, theirs)
    unit = _choose_unit(ours, theirs)
    left, right = pick_values(ours, steps) / unit, pick_values(theirs, steps) / unit
    scale = measure_scale(left)
    differences = _subtract(right, left, scale)
    apart = _find_apart(left, right)
    printed = pick_values(ours, steps, ours.resolve()) + pick_values(theirs, steps, theirs.resolve())
    resolution = (printed / unit / scale).clip(0, _LARGEST)
    chosen = choose_band(
        steps,
        differences,
        resolution,
        (ours.precision, theirs.precision),
        band=band,
        repeats=[_subtract(pick_values(repeat, steps) / unit, left, scale) for repeat in again],
    )
    onset = find_onset(steps, left, differences, apart, chosen)
    shift = find_shift(left[onset.index :], right[onset.index :]) if onset is not None and _is_even(steps) else None
    notes = [*ours.notes, *theirs.notes, *(note for repeat in again for note in repeat.notes)]
    notes += write_remarks(ours, theirs, again, steps, differences, resolution, chosen, onset, shift)
    return _build_report(ours, theirs, steps, differences, chosen, onset, shift, notes)


def _find_common_steps(reference: Series, candidate: Series) -> Array:
    common = sorted(set(reference.steps) & set(candidate.steps))
    if not common:
        raise NothingInCommon(
            f"{reference.origin} (steps {_span(reference)}) and {candidate.origin} (steps {_span(candidate)}) have no "
            "step in common. If one counts in samples or with an offset, bring both to one count first"
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
    steps: Array,
    differences: Array,
    band: Band,
    onset: Onset | None,
    shift: int | None,
    notes: Sequence[str],
) -> LossReport:
    magnitudes = np.abs(differences)
    known = np.isfinite(magnitudes)
    worst = int(np.nanargmax(magnitudes)) if known.any() else 0
    index = onset.index if onset is not None else None
    return LossReport(
        name=reference.name,
        reference=reference,
        candidate=candidate,
        steps=tuple(steps.tolist()),
        differences=tuple(differences.tolist()),
        band=band,
        limit=float(band.law[-1]) if onset is None else onset.limit,
        onset=None if index is None else int(steps[index]),
        kind="" if onset is None else onset.kind,
        shift=shift,
        mean_error=float(magnitudes[known].mean()) if known.any() else math.nan,
        max_error=float(magnitudes[worst]),
        max_error_step=int(steps[worst]),
        trend=_fit_trend(steps, differences, index or 0),
        capture_steps=None if index is None else (int(steps[max(0, index - 1)]), int(steps[index])),
        notes=tuple(dict.fromkeys(notes)),
    )


def _fit_trend(steps: Array, differences: Array, start: int) -> float:
    """Least-squares slope of the relative difference per step from ``start`` on; 0 for fewer than three points."""
    known = np.isfinite(differences[start:])
    x, y = steps[start:][known].astype(np.float64), differences[start:][known]
    if len(x) < 3:
        return 0.0
    x = x - x.mean()
    return float((x * (y - y.mean())).sum() / (x * x).sum())


def _jsonable(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)


def _jsonable_series(series: Series) -> dict[str, Any]:
    return {
        "origin": series.origin,
        "steps": list(series.steps),
        "values": [_jsonable(value) for value in series.values],
    }
