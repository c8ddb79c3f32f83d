"""Which linear combination of the ranks' contributions a result is: the trace that a wrong reduction leaves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from precision_align.core.dtypes import Array

# Contributions closer to dependent than this (smallest over largest eigenvalue of their normalised Gram matrix) do not
# tell whose share is whose: a coefficient's error is the rounding error times up to 1e4 then.
_DEPENDENT = 1e-4
# Of a coefficient, in units of the largest one; rounding in float32 stays below 1e-4 and in 16-bit formats below 2e-2.
_SAME = 0.02
# What the combination may leave unexplained, relative to the result; bfloat16 sums leave 0.01.
_UNEXPLAINED = 0.03


@dataclass(frozen=True)
class Combination:
    """``coefficients``: one a contribution; ``residual``: L2 of what they leave of the result, relative to it."""

    coefficients: tuple[float, ...]
    residual: float

    @property
    def uniform(self) -> float | None:
        """The coefficient that all contributions have, None where they differ."""
        largest = max(map(abs, self.coefficients))
        mean = sum(self.coefficients) / len(self.coefficients)
        return mean if all(abs(one - mean) <= _SAME * largest for one in self.coefficients) else None

    @property
    def lacking(self) -> list[int]:
        """Positions of the contributions that are not in the result."""
        largest = max(map(abs, self.coefficients))
        return [index for index, one in enumerate(self.coefficients) if abs(one) <= _SAME * largest]


def fit_combination(contributions: Sequence[Array], result: Array) -> Combination | None:
    """The coefficients of least squares in float64 by the normal equations: one pass over the tensors.

    ``contributions``: arrays of the result's shape. None where there is no telling: contributions that are (nearly)
    dependent or zero, values that are not finite, or a result that is no combination of them.
    """
    vectors = [np.asarray(one, dtype=np.float64).reshape(-1) for one in contributions]
    target = np.asarray(result, dtype=np.float64).reshape(-1)
    gram = np.array([[float(left @ right) for right in vectors] for left in vectors])
    scales = np.sqrt(np.diag(gram))
    norm = float(np.linalg.norm(target))
    if not np.isfinite(gram).all() or not np.isfinite(norm) or not scales.all() or norm == 0.0:
        return None
    eigenvalues = np.linalg.eigvalsh(gram / np.outer(scales, scales))
    if len(target) < len(vectors) or eigenvalues[0] < _DEPENDENT * eigenvalues[-1]:
        return None
    coefficients = np.linalg.solve(gram, np.array([float(one @ target) for one in vectors]))
    rest = target - sum(factor * one for factor, one in zip(coefficients, vectors))
    residual = float(np.linalg.norm(rest)) / norm
    return Combination(tuple(map(float, coefficients)), residual) if residual <= _UNEXPLAINED else None
