"""Acceptance rules, spikes and batches beside two curves."""

from __future__ import annotations

import math

import numpy as np
import pytest

from precision_align.training.acceptance import check_acceptance
from precision_align.training.batches import compare_batches
from precision_align.training.curves import compare_losses
from precision_align.training.series import Series
from precision_align.training.spikes import find_spikes


def judge(name: str, reference: list[float], candidate: list[float]) -> dict[str, bool]:
    return {result.name: result.holds for result in check_acceptance(name, np.array(reference), np.array(candidate))}


def test_equal_losses_meet_every_rule() -> None:
    assert set(judge("lm loss", [2.0] * 5, [2.0] * 5).values()) == {True}


@pytest.mark.parametrize(
    ("candidate", "broken"),
    [
        ([10.04, *[10.0] * 4], set()),
        ([10.06, *[10.0] * 4], {"first loss: error < 0.005 or < 0.5 %"}),
        ([10.0, *[10.15] * 4], {"mean error < 0.01 or < 1 %", "every step < 1 %"}),
        ([10.0, 10.0, 10.11, 10.0, 10.0], {"every step < 1 %"}),
        ([10.0, *[10.3] * 4], {"mean error < 0.01 or < 1 %", "mean relative error < 2 %", "every step < 1 %"}),
    ],
)
def test_each_rule_has_its_limit(candidate: list[float], broken: set[str]) -> None:
    assert {name for name, holds in judge("loss", [10.0] * 5, candidate).items() if not holds} == broken


def test_small_losses_are_judged_by_their_absolute_error() -> None:
    assert set(judge("loss", [0.01] * 3, [0.011] * 3)) > {
        name for name, ok in judge("loss", [0.01] * 3, [0.011] * 3).items() if not ok
    }
    assert judge("loss", [0.01] * 3, [0.011] * 3)["first loss: error < 0.005 or < 0.5 %"]


def test_rules_are_for_their_series_and_name_their_source() -> None:
    (result,) = check_acceptance("grad norm", np.full(3, 2.0), np.full(3, 2.1))
    assert (result.holds, result.value) == (True, pytest.approx(0.05))
    assert "acc_optimize" in result.source
    assert not check_acceptance("learning rate", np.ones(3), np.ones(3))


@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_is_not_finite_meets_no_rule(side: int, value: float) -> None:
    sides = [[2.0] * 5, [2.0] * 5]
    sides[side][3] = value
    assert set(judge("loss", *sides).values()) == {False}


def make_curve(seed: int, spike: float = 0.0) -> Series:
    rng = np.random.default_rng(seed)
    values = (2 + 2 * np.exp(-np.arange(300) / 60)) * (1 + 0.02 * rng.standard_normal(300))
    values[150] *= 1 + spike
    return Series("loss", tuple(range(300)), tuple(values.tolist()), "run")


def test_no_spike_in_the_scatter_of_batches() -> None:
    for seed in range(100):
        assert not find_spikes(make_curve(seed), make_curve(seed))


def test_no_spike_in_a_rising_or_a_flat_curve() -> None:
    for values in (np.linspace(1, 9, 200), np.ones(200), np.repeat([1.0, 1.02], 100)):
        series = Series("lr", tuple(range(200)), tuple(values.tolist()), "run")
        assert not find_spikes(series, series)


def test_a_spike_of_one_side_or_of_both_and_its_batch() -> None:
    (spike,) = find_spikes(make_curve(1), make_curve(1, 0.6), ({150: "ab"}, {150: "ab"}))
    assert (spike.step, spike.sides, spike.batch, spike.same_batch) == (150, ("candidate",), ("ab",), True)
    assert spike.rise == pytest.approx(0.6, abs=0.08)
    (both,) = find_spikes(make_curve(1, 0.4), make_curve(1, 0.6), ({150: "ab"}, {150: "cd"}))
    assert (both.sides, both.batch, both.same_batch) == (("reference", "candidate"), ("ab", "cd"), False)


BATCHES = {step: f"{step:04x}" for step in range(40)}


@pytest.mark.parametrize(
    ("candidate", "kind", "step", "shift"),
    [
        (BATCHES, "same", None, None),
        ({step: BATCHES[(step + 3) % 40] if step >= 10 else BATCHES[step] for step in BATCHES}, "reordered", 10, None),
        ({step: f"{step + 3 * (step >= 10):04x}" for step in range(37)}, "shifted", 10, 3),
        ({step: f"{step - 1:04x}" for step in range(1, 40)}, "shifted", 1, -1),
        ({step: BATCHES[39 - step] for step in BATCHES}, "reordered", 0, None),
        ({step: "ffff" if step == 7 else BATCHES[step] for step in BATCHES}, "other", 7, None),
    ],
)
def test_batch_orders(candidate: dict[int, str], kind: str, step: int | None, shift: int | None) -> None:
    order = compare_batches(BATCHES, candidate)
    assert order is not None
    assert (order.kind, order.step, order.shift) == (kind, step, shift)


def test_runs_without_common_fingerprints_say_nothing() -> None:
    assert compare_batches(BATCHES, {}) is None
    assert compare_batches({0: "a"}, {1: "a"}) is None


def test_curves_without_batches_have_no_order() -> None:
    assert compare_losses([(0, 1.0)], [(0, 1.0)]).order is None
