"""Random operators: a mask cannot be compared across generators, its rate and the scale of what it keeps can."""

from __future__ import annotations

import math

import numpy as np
from torch import nn

from precision_align.core.dtypes import Array, Dtype
from precision_align.core.terms import Status
from precision_align.numerics.judgement import Judgement

SIGMAS = 5.0  # of the binomial: a false alarm in 1.7 million masks
KEPT_ROUNDINGS = 3.0  # scale, product and store each round once


def judge_dropout(inputs: Array, output: Array, module: nn.Module, dtype: Dtype) -> Judgement:
    """Dropout on the candidate's own input: keep rate within five sigma, kept values = x / (1 - p) but for rounding.

    ``inputs``, ``output``: float64. Source: torch.nn.Dropout's documented definition. A pass says nothing of the mask.
    """
    keep = 1.0 - float(getattr(module, "p", 0.5))
    finite = np.isfinite(inputs)
    counted = finite & (inputs != 0)
    total = int(np.count_nonzero(counted))
    if type(module) is not nn.Dropout and not isinstance(module, nn.Dropout):
        return Judgement(Status.INCONCLUSIVE, f"the distribution of {type(module).__name__} is not tested")
    if inputs.shape != output.shape:
        return Judgement(Status.FAIL, f"shape {output.shape}, the reference computes {inputs.shape}")
    if total == 0:
        return Judgement(Status.INCONCLUSIVE, "no finite non-zero input shows the mask")
    kept = counted & (output != 0)
    rate = float(np.count_nonzero(kept)) / total
    allowed = SIGMAS * math.sqrt(keep * (1 - keep) / total) + 1.0 / total
    metrics = {"keep_rate": rate, "expected_rate": keep}
    if abs(rate - keep) > allowed:
        return Judgement(Status.FAIL, f"keeps {rate:.4f} of the values instead of {keep:.4f}", metrics)
    if bool((output[finite & (inputs == 0)] != 0).any()):
        return Judgement(Status.FAIL, "zeros come out as something else", metrics)
    expected = inputs[kept] / keep if keep > 0 else inputs[kept]
    if not _are_rounded(output[kept], expected, dtype):
        return Judgement(Status.FAIL, f"kept values are not x / {keep:.4g}", metrics)
    return Judgement(Status.PASS, "rate and scale of the random mask are right", metrics)


def _are_rounded(output: Array, expected: Array, dtype: Dtype) -> bool:
    """Whether values are the expected ones up to rounding; beyond the dtype's range that is infinity."""
    allowed = KEPT_ROUNDINGS * dtype.roundoff * np.abs(expected) + dtype.eta
    beyond = np.abs(expected) + allowed > dtype.maximum
    with np.errstate(invalid="ignore"):
        close = np.abs(output - expected) <= allowed  # false for NaN
    return bool((close | (beyond & (output == np.copysign(np.inf, expected)))).all())
