"""The rules by which a case is judged, by name. Kept in code, not in TOML: the runner needs them on a bare host."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from precision_align.core.dtypes import Array, Dtype
from precision_align.numerics.judgement import Judgement, Scale, judge, judge_exact
from precision_align.numerics.limits import GENERIC_COEFFICIENT_FLOAT32, GENERIC_COEFFICIENT_LOW

ORIGIN = "random perturbation of inputs and intermediate results"


@dataclass(frozen=True)
class Rule:
    """A way to judge. ``low`` and ``float32`` are the coefficients c of the bound u|g| + c u32 S + eta."""

    name: str
    reason: str
    exact: bool = False
    low: float = GENERIC_COEFFICIENT_LOW
    float32: float = GENERIC_COEFFICIENT_FLOAT32


_ALL = (
    Rule(
        "double standard",
        "Float64 golden on the same inputs, element-wise bound with S from random perturbation, ratio to the "
        "same-dtype reference's own error, signed bias; needs no formula of the operator, so it serves gradients too.",
    ),
    Rule("exact", "The operator moves, selects or counts: every bit is determined.", exact=True),
)
RULES = {rule.name: rule for rule in _ALL}


def judge_choice(actual: Array, options: Sequence[Array]) -> Judgement:
    """Judge whole numbers that come of rounded arithmetic (indices of a maximum, rounded quotients).

    ``options``: what the golden function, conforming builds, and the golden function under small perturbation give:
    each value must be one that one of them gives at its place.
    """
    fitting = [option for option in options if option.shape == actual.shape]
    if not fitting:
        return judge_exact(actual, options[0])
    nearest = fitting[0].copy()
    for option in fitting[1:]:
        np.copyto(nearest, option, where=(nearest != actual) & (option == actual))
    return judge_exact(actual, nearest)


def judge_output(rule: Rule, actual: Array, golden: Array, native: Array, scale: Array, dtype: Dtype) -> Judgement:
    """Judge one tensor. Arrays of one shape in float64 (integers and booleans as they are)."""
    if rule.exact or not dtype.is_floating:
        return judge_exact(actual, native if rule.exact else golden)
    coefficient = rule.low if dtype.itemsize <= 2 else rule.float32
    return judge(actual, golden, native, Scale(scale, coefficient, origin=ORIGIN), dtype)
