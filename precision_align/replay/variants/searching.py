"""Tries the variants of a call's operations on one of its results and keeps those that come near the candidate's."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any, Callable, Optional

import numpy as np

from precision_align.core.dtypes import Array, Dtype
from precision_align.numerics.judgement import settle
from precision_align.replay.variants.constants import Constant, fit_constant, list_constants
from precision_align.replay.variants.edits import list_edits
from precision_align.replay.variants.forms import list_forms
from precision_align.replay.variants.masks import list_masks
from precision_align.replay.variants.operations import Key, ObservingMode, Rule, Trial, TrialMode, Variant
from precision_align.replay.variants.orders import list_orders
from precision_align.replay.variants.roundings import try_roundings

SECONDS = 10.0  # for all trials of one divergence: the first ones are the likeliest
KEPT = 0.5  # a variant that leaves more of the error is not worth a place in the ranking
Found = tuple[str, str, Array]
Replay = Callable[[Any], Optional[Array]]


def search_variants(actual: Array, golden: Array, dtype: Dtype, replay: Replay) -> list[Found]:
    """(name, text, golden under it) of the variants that explain some of ``actual - golden`` (both float64).

    ``dtype``: the candidate's, in which both are compared; ``replay(mode)``: the result, in float64, of one replay
    under a dispatch mode, None where the code does not run so.
    """
    error = _distance(actual, settle(golden, dtype))
    if error == 0:
        return []
    until = time.monotonic() + SECONDS
    found: list[Found] = []
    for name, text, value in _try_all(actual, golden, replay):
        if value.shape == actual.shape and _distance(actual, settle(value, dtype)) <= KEPT * error:
            found.append((name, text, value))
        if time.monotonic() > until:
            break
    return found


def _try_all(actual: Array, golden: Array, replay: Replay) -> Iterator[Found]:
    for rules in ((list_forms, list_masks, list_orders), (list_edits,)):
        for trial in _observe(rules, replay):
            value = _run(trial, actual, replay)
            if value is not None:
                yield trial.name, trial.text, value
    if actual.size > 1:  # a single number could be had from any constant
        yield from _fit_constants(actual, golden, replay)
    yield from try_roundings(actual, replay)


def _fit_constants(actual: Array, golden: Array, replay: Replay) -> Iterator[Found]:
    for trial in _observe((list_constants,), replay):
        ((key, constant),) = trial.changes.items()
        assert isinstance(constant, Constant)

        def rerun(variant: Variant, key: Key = key) -> Optional[Array]:
            value = _run(Trial(variant.name, variant.text, {key: variant}), actual, replay)
            return value if value is not None and value.shape == actual.shape else None

        for variant, value in fit_constant(constant, actual, golden, rerun):
            yield variant.name, variant.text, value


def _observe(rules: Sequence[Rule], replay: Replay) -> list[Trial]:
    mode = ObservingMode(rules)
    replay(mode)
    return list(mode.list_trials())


def _run(trial: Trial, actual: Array, replay: Replay) -> Optional[Array]:
    """The result under a trial; None where nothing was done otherwise. Slices' means are averaged."""
    mode = TrialMode(trial)
    value = replay(mode)
    if value is None or not mode.count:
        return None
    return np.full(actual.shape, value.mean()) if actual.size == 1 and value.size else value


def _distance(left: Array, right: Array) -> float:
    """Norm of the difference where the candidate is finite; a value that is not finite there is as far as can be."""
    error = (left - right)[np.isfinite(left)]
    return float(np.linalg.norm(error)) if np.isfinite(error).all() else float("inf")
