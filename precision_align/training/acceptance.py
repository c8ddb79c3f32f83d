"""Acceptance rules for a migrated training that the field uses, each under its name and with its source.

They say whether two runs are close enough for a purpose, not whether they differ by more than arithmetic explains: a
wrong operator can pass all of them (facts/numerics.md 4.7), and two right runs of a chaotic training can fail them.
Relative errors are |candidate - reference| / |reference|, as the sources define them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from precision_align.core.dtypes import Array

# before the colon what a source is called where there is little room
MINDSPORE = (
    "MindSpore Transformers: Large Model Accuracy Optimization Guide, 'Large Model Migration Accuracy Standard' "
    "(gitee.com/mindspore/docs, docs/mindformers/docs/source_en/acc_optimize/acc_optimize.md)"
)
VERL = "verl, OpenRLHF: github.com/verl-project/verl/pull/332, github.com/OpenRLHF/OpenRLHF/pull/605"
MSPROBE = "msprobe guide: MindStudio msprobe, docs best_practices/train_debug_guide.md"
_ENOUGH_STEPS = 1000  # what the MindSpore standard asks for at least


@dataclass(frozen=True)
class RuleResult:
    """One rule on two curves.

    ``name``: what it is called here; ``statement``: what it asks for; ``source``: who says so; ``value``: what was
    measured, in the unit of ``limit``; ``holds``: never where a value is not finite; ``note``: what weakens it.
    """

    name: str
    statement: str
    source: str
    value: float
    limit: float
    holds: bool
    note: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {**asdict(self), "value": self.value if math.isfinite(self.value) else str(self.value)}


@dataclass(frozen=True)
class _Rule:
    name: str
    statement: str
    source: str
    limit: float
    measure: Callable[[Array, Array], float]
    applies: Callable[[str], bool]
    steps: int = 1


def _is_loss(name: str) -> bool:
    return "loss" in name.lower()


def _is_norm(name: str) -> bool:
    return "norm" in name.lower()


def _measure_relative(reference: Array, candidate: Array) -> Array:
    """|candidate - reference| / |reference|; 0 where both are 0, infinite where only the reference is."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        relative = np.abs(candidate - reference) / np.abs(reference)
    return np.where(candidate == reference, 0.0, relative)


def _mean_relative(reference: Array, candidate: Array) -> float:
    return float(_measure_relative(reference, candidate).mean())


def _largest_relative(reference: Array, candidate: Array) -> float:
    return float(_measure_relative(reference, candidate).max())


def _first_share(reference: Array, candidate: Array) -> float:
    """Of the two limits for the first loss, 0.005 absolute or 0.5 % relative, how much of the kinder one is used."""
    absolute = float(abs(candidate[0] - reference[0])) / 0.005
    return min(absolute, float(_measure_relative(reference[:1], candidate[:1])[0]) / 0.005)


def _mean_share(reference: Array, candidate: Array) -> float:
    """The same for the means: 0.01 absolute or 1 % relative."""
    return min(float(np.abs(candidate - reference).mean()) / 0.01, _mean_relative(reference, candidate) / 0.01)


_RULES = (
    _Rule(
        "first loss: error < 0.005 or < 0.5 %",
        "at the first step an absolute error under 0.005 or a relative one under 0.5 % (value: the share of that used)",
        MINDSPORE,
        1.0,
        _first_share,
        _is_loss,
    ),
    _Rule(
        "mean error < 0.01 or < 1 %",
        "a mean absolute error under 0.01 or a mean relative error under 1 % (value: the share of that used)",
        MINDSPORE,
        1.0,
        _mean_share,
        _is_loss,
        _ENOUGH_STEPS,
    ),
    _Rule("mean relative error < 2 %", "a mean relative error under 2 %", VERL, 0.02, _mean_relative, _is_loss),
    _Rule(
        "every step < 1 %",
        "no step with a relative error over 1 %; the first such step is the one to record",
        MSPROBE,
        0.01,
        _largest_relative,
        _is_loss,
    ),
    _Rule(
        "mean norm error < 10 %",
        "a mean relative error of the global gradient norm of at most 10 %",
        MINDSPORE,
        0.1,
        _mean_relative,
        _is_norm,
        _ENOUGH_STEPS,
    ),
)


def check_acceptance(name: str, reference: Array, candidate: Array) -> tuple[RuleResult, ...]:
    """Every rule that is made for a series of this name, on its values at the common steps (float64, one length)."""
    bad = int((~(np.isfinite(reference) & np.isfinite(candidate))).sum())
    return tuple(_check(rule, reference, candidate, bad) for rule in _RULES if rule.applies(name))


def _check(rule: _Rule, reference: Array, candidate: Array, bad: int) -> RuleResult:
    if bad:
        note = f"not finite at {bad} of {len(reference)} steps"
        return RuleResult(rule.name, rule.statement, rule.source, math.nan, rule.limit, False, note)
    value = rule.measure(reference, candidate)
    few = len(reference) < rule.steps
    note = f"{len(reference)} steps; the source asks for {rule.steps} or more" if few else ""
    return RuleResult(rule.name, rule.statement, rule.source, value, rule.limit, value <= rule.limit, note)
