"""What a report on two curves says besides its verdict: what was left out, assumed, or could not be seen."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from precision_align.core.dtypes import Array
from precision_align.training.bands import EARLY, Band, law_constant
from precision_align.training.onset import ENOUGH, JUMP, Onset
from precision_align.training.series import Series, pick_values


def write_remarks(
    reference: Series,
    candidate: Series,
    repeats: Sequence[Series],
    steps: Array,
    differences: Array,
    band: Band,
    limits: Array,
    onset: Onset | None,
) -> list[str]:
    """The notes of a report on two curves; the arguments are those of the comparison, arrays on the common steps."""
    return [
        *_note_left_out(reference, candidate, steps),
        *_note_repeats(repeats, steps),
        *_note_resolution(limits, band),
        *_note_onset(onset),
        *_note_quiet(steps, differences, band, limits, onset),
    ]


def _note_left_out(reference: Series, candidate: Series, steps: Array) -> Iterable[str]:
    for series in (reference, candidate):
        missing = len(series.steps) - len(steps)
        if missing:
            yield f"{series.origin}: {missing} of {len(series.steps)} steps have no partner and are not compared"
    both = np.isfinite(pick_values(reference, steps)) | np.isfinite(pick_values(candidate, steps))
    if not both.all():
        first = int(steps[~both][0])
        yield f"both sides are not finite at {int((~both).sum())} steps, first {first}: nothing to compare there"


def _note_repeats(repeats: Sequence[Series], steps: Array) -> Iterable[str]:
    for repeat in repeats:
        missing = int(np.isnan(pick_values(repeat, steps)).sum())
        if missing:
            share = f"{missing} of {len(steps)}"
            yield f"{repeat.origin}: no finite value at {share} common steps; the band leaves them out"


def _note_resolution(limits: Array, band: Band) -> Iterable[str]:
    # printed digits that make up half of the band or more decide what can be seen
    if (band.resolution >= limits).mean() > 0.5 and band.resolution.any():
        hidden = float(np.median(band.resolution))
        yield f"the printed digits hide differences under {hidden:.1e}; log more digits to see smaller ones"


def _note_onset(onset: Onset | None) -> Iterable[str]:
    if onset is not None and onset.kind == "spike":
        yield f"back within the band after {onset.duration} steps: a spike; look at that step's batch first"
    if onset is not None and onset.kind == "drift":
        yield "the difference grew slowly, so the cause may act from the first step on: steps 0-1 can show it too"


def _note_quiet(steps: Array, differences: Array, band: Band, limits: Array, onset: Onset | None) -> Iterable[str]:
    """What the absence of an onset does not exclude."""
    if onset is not None:
        return
    if len(steps) < ENOUGH:
        yield f"only {len(steps)} common steps: little but a jump over {JUMP:g} times the band would have been seen"
    tail = np.abs(differences[-(ENOUGH - 1) :]) > limits[-(ENOUGH - 1) :]
    if tail[-1] and tail.mean() > 0.5:
        yield "the last steps lie outside the band, too few to be sure: train some steps more"
    early = np.abs(differences[:EARLY])
    early = early[np.isfinite(early)]
    if not band.precision and band.adaptive and early.size and float(np.median(early)) > law_constant("float32"):
        yield (
            f"from the first common step on the curves differ by about {float(np.median(early)):.1e}: more than "
            "float32 round-off, possible in bfloat16. If both runs compute in float32, say so with the band 'float32'; "
            "repeated runs of the reference measure the noise"
        )
