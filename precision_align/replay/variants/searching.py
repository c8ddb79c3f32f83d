"""Tries the variants of a call's operations on one of its results and keeps those that come near the candidate's."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from functools import partial
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
from precision_align.replay.variants.roundings import list_lowerings

SECONDS = 10.0  # for all trials of one divergence: the first ones are the likeliest
EXPLAINED = 3e-3  # a guess that leaves no more is right: less likely ones need not be tried
KEPT = 0.5  # a variant that leaves more of the error is not worth a place in the ranking
# Of 16-bit values more is kept at first: what a chain of roundings leaves is found by a native replay.
KEPT_LOW, CLEAR, LOW_ROUNDOFF = 0.95, 0.02, 2.0**-11
Found = tuple[str, str, Array]
Replay = Callable[[Any, bool], Optional[Array]]
Wide = Callable[[Any], Optional[Array]]
Tried = tuple[str, str, Callable[[], Any], Array]


def search_variants(actual: Array, golden: Array, dtype: Dtype, replay: Replay) -> list[Found]:
    """(name, text, value under it) of the variants that explain some of ``actual - golden`` (both float64).

    ``dtype``: the candidate's, in which both are compared; ``replay(mode, native)``: the result of one replay under a
    dispatch mode, in float64 or in its own dtypes; None where the code does not run so.
    """
    error = measure_distance(actual, settle(golden, dtype))
    if error == 0:
        return []
    low = dtype.roundoff >= LOW_ROUNDOFF
    until = time.monotonic() + SECONDS
    found: list[Found] = []
    best = 1.0
    for stage in _list_stages(actual, golden, lambda mode: replay(mode, False)):
        for name, text, make, value in stage:
            left = measure_distance(actual, settle(value, dtype)) / error
            if low and CLEAR < left <= KEPT_LOW:
                native = _fit_shape(replay(make(), True), actual)
                if native is not None and measure_distance(actual, native) < left * error:
                    left, value = measure_distance(actual, native) / error, native
            if left <= KEPT:
                found.append((name, text, value))
            best = min(best, left)
            if time.monotonic() > until:
                return found
        if best <= EXPLAINED:
            break
    return found


def _list_stages(actual: Array, golden: Array, replay: Wide) -> Iterator[Iterator[Tried]]:
    """The likeliest guesses first; each with how to do it again and what came of it in float64."""
    yield _try_rules((list_forms, list_masks, list_orders), actual, replay)
    yield _try_rules((list_edits,), actual, replay)
    if actual.size > 1:  # a single number could be had from any constant
        yield _fit_constants(actual, golden, replay)
    yield _try_lowerings(actual, replay)


def _try_rules(rules: Sequence[Rule], actual: Array, replay: Wide) -> Iterator[Tried]:
    for trial in _observe(rules, replay):
        value = _run(trial, actual, replay)
        if value is not None:
            yield trial.name, trial.text, partial(TrialMode, trial), value


def _try_lowerings(actual: Array, replay: Wide) -> Iterator[Tried]:
    for text, make in list_lowerings(replay):
        value = _fit_shape(replay(make()), actual)
        if value is not None:
            yield "lower type inside", text, make, value


def _fit_constants(actual: Array, golden: Array, replay: Wide) -> Iterator[Tried]:
    for observed in _observe((list_constants,), replay):
        ((key, constant),) = observed.changes.items()
        assert isinstance(constant, Constant)

        def rerun(variant: Variant, key: Key = key) -> Optional[Array]:
            return _run(Trial(variant.name, variant.text, {key: variant}), actual, replay)

        for variant, value in fit_constant(constant, actual, golden, rerun):
            trial = Trial(variant.name, variant.text, {key: variant})
            yield variant.name, variant.text, partial(TrialMode, trial), value


def _observe(rules: Sequence[Rule], replay: Wide) -> list[Trial]:
    mode = ObservingMode(rules)
    replay(mode)
    return list(mode.list_trials())


def _run(trial: Trial, actual: Array, replay: Wide) -> Optional[Array]:
    """The result under a trial; None where nothing was done otherwise or another shape came of it."""
    mode = TrialMode(trial)
    value = _fit_shape(replay(mode), actual)
    return value if mode.count else None


def _fit_shape(value: Optional[Array], actual: Array) -> Optional[Array]:
    """In the candidate's shape: where it has one number, the mean of several. None where that is impossible."""
    if value is not None and value.shape != actual.shape and actual.size == 1 and value.size:
        return np.full(actual.shape, value.mean())
    return value if value is not None and value.shape == actual.shape else None


def measure_distance(left: Array, right: Array) -> float:
    """Norm of the difference where the candidate is finite; a value that is not finite there is as far as can be."""
    error = (left - right)[np.isfinite(left)]
    return float(np.linalg.norm(error)) if np.isfinite(error).all() else float("inf")
