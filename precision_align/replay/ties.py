"""Decisions inside code with floating results: a rounding, a threshold, a cell index that rounding may flip."""

from __future__ import annotations

from typing import Callable, Optional

import numpy as np
import torch

from precision_align.core.dtypes import Array, Dtype
from precision_align.core.terms import Status
from precision_align.numerics.judgement import Judgement, Scale, judge
from precision_align.numerics.limits import LIMITS, U32

Change = Callable[[torch.Tensor], torch.Tensor]

# Share of values up to which failing ones may be flips at near-ties: more of them are a fault.
FEW = 0.05
# Relative noise that flips a near-tie: what arithmetic inside the code may be off by, since its inputs are exact data.
# So small a change cannot excuse a smooth error.
UNIT = 4 * U32
# Opposite pairs of noise: one of a pair flips an exact tie between two.
PAIRS = 8
TIE_PAIRS = 16  # changes, each with its opposite: a tie within one rounding stays hidden with a chance of 1e-13
TIE_TRIAL = 4  # pairs after which most ties must have shown: else these are no ties
TIE_FEW = 8  # up to so many stay in the game: of a handful, chance may hide all that long


def excuse_near_ties(
    actual: Array,
    golden: Array,
    native: Array,
    scale: Scale,
    kind: Dtype,
    found: Judgement,
    rerun: Callable[[Change], Optional[Array]],
) -> Judgement:
    """``found``, or a warning where every failing value is what a slightly perturbed replay gives.

    Arrays in float64 of one shape; ``rerun``: golden results with changed inputs, None where that does not work.
    """
    if actual.shape != golden.shape or actual.size < 2 or actual.dtype.kind != "f":
        return found
    with np.errstate(all="ignore"):
        size = np.nan_to_num(np.abs(scale.values), nan=0.0, posinf=0.0)
        room = LIMITS.z_fail * (kind.roundoff * np.abs(golden) + scale.coefficient * U32 * size + kind.eta)
        failing = np.abs(actual - golden) > room
        count = int(np.count_nonzero(failing))
        if not 0 < count <= max(1, int(FEW * actual.size)):
            return found
        still = failing.copy()
        for seed in range(PAIRS):
            for sign in (1.0, -1.0):
                values = rerun(_make_change(seed, sign * UNIT))
                if values is not None and values.shape == actual.shape:
                    still &= np.abs(actual - values) > room
            left = int(np.count_nonzero(still))
            if left == 0:
                break
            if left > 0.75 * count and seed == 0 and count > 4:
                return found
        if still.any():
            return found
    again = judge(np.where(failing, golden, actual), golden, np.where(failing, golden, native), scale, kind)
    if again.status == Status.FAIL:
        return found
    text = f"{count} values differ only at near-ties of a decision inside, which rounding flips"
    return Judgement(Status.WARN, text, {"mismatched": count / actual.size})


def are_ties(actual: Array, native: Array, unit: float, rerun: Callable[[Change], Optional[Array]]) -> bool:
    """Whether each decision that differs is one that some small change of the inputs gives, too.

    Each change is tried with its opposite: one of the two flips an exact tie between two. However many ties there
    are, few pairs settle all of them; a wrong decision stays. A count may be any between those that were seen.
    """
    differing = actual != native
    open_, low, high = differing.copy(), native.copy(), native.copy()
    for seed in range(TIE_PAIRS):
        for sign in (1.0, -1.0):
            seen = rerun(_scale_noise(torch.Generator().manual_seed(seed), sign * unit))
            if seen is not None and seen.shape == native.shape:
                low, high = np.minimum(low, seen), np.maximum(high, seen)
                open_ &= (actual < low) | (actual > high)
        if not open_.any():
            return True
        if seed + 1 == TIE_TRIAL and np.count_nonzero(open_) > max(np.count_nonzero(differing) / 2, TIE_FEW):
            return False
    return False


def _scale_noise(generator: torch.Generator, unit: float) -> Change:
    def change(tensor: torch.Tensor) -> torch.Tensor:
        return tensor * (1 + unit * torch.randn(tensor.shape, generator=generator, dtype=torch.float64))

    return change


def _make_change(seed: int, unit: float) -> Change:
    generator = torch.Generator().manual_seed(seed)

    def change(tensor: torch.Tensor) -> torch.Tensor:
        noise = torch.randn(tensor.shape, generator=generator, dtype=torch.float64)
        return tensor * (1 + unit * noise) if tensor.dtype == torch.float64 else tensor

    return change
