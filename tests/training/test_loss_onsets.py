"""The onset of simulated faults, and silence on simulated noise."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from precision_align.training.curves import compare_losses

sys.path.insert(0, str(Path(__file__).parent))
from simulated_curves import NOISE, Scenario, make_loss, make_noise, make_pair, number

FLOAT32 = [
    Scenario(fault, onset, length, size)
    for fault, size in (
        ("bias", 3e-4),
        ("low bias", 3e-4),
        ("drift", 1e-4),
        ("spike", 3e-3),
        ("wide spike", 3e-3),
        ("scatter", 1e-3),
        ("shift", 0.0),
        ("nan", 0.0),
    )
    for onset, length in ((0, 60), (25, 60), (150, 400), (1500, 2500))
]
BFLOAT16 = [
    Scenario(fault, onset, length, size)
    for fault, size in (
        ("bias", 0.05),
        ("low bias", 0.05),
        ("drift", 0.04),
        ("spike", 0.4),
        ("nan", 0.0),
        ("shift", 0.0),
    )
    for onset, length in ((0, 60), (25, 60), (150, 400))
]


def name(scenario: Scenario) -> str:
    return f"{scenario.fault.replace(' ', '-')}@{scenario.onset}of{scenario.length}"


@pytest.mark.parametrize("scenario", FLOAT32, ids=name)
def test_float32_onset_within_two_steps(scenario: Scenario) -> None:
    for seed in range(3):
        report = compare_losses(*make_pair(seed, "float32", scenario), band="float32")
        assert report.onset is not None
        assert abs(report.onset - scenario.onset) <= 2


@pytest.mark.parametrize("scenario", BFLOAT16, ids=name)
def test_bfloat16_onset_within_two_steps(scenario: Scenario) -> None:
    for seed in range(3):
        report = compare_losses(*make_pair(seed, "bfloat16", scenario))
        assert report.onset is not None
        assert abs(report.onset - scenario.onset) <= 2


@pytest.mark.parametrize("scenario", [scenario for scenario in FLOAT32 if scenario.onset > 8], ids=name)
def test_onset_without_knowing_the_dtype(scenario: Scenario) -> None:
    report = compare_losses(*make_pair(7, "float32", scenario))
    assert report.onset is not None
    assert abs(report.onset - scenario.onset) <= 2


@pytest.mark.parametrize("precision", list(NOISE))
@pytest.mark.parametrize("band", ["known", None])
@pytest.mark.parametrize("length", [5, 40, 300, 2000])
def test_no_alarm_on_clean_curves(precision: str, band: str | None, length: int) -> None:
    given = {"exact": "float32"}.get(precision, precision) if band else None
    for seed in range(12):
        report = compare_losses(*make_pair(seed, precision, None, length), band=given)
        assert not report.parted, (seed, report.describe())


@pytest.mark.parametrize("growth", [0.3, 0.8, 1.0])
@pytest.mark.parametrize("persistence", [0.0, 0.9])
@pytest.mark.parametrize("first", [1e-6, 1e-5, 5e-5])
def test_no_alarm_where_noise_grows_otherwise(growth: float, persistence: float, first: float) -> None:
    for seed in range(5):
        rng = np.random.default_rng(seed)
        reference = make_loss(rng, 500)
        candidate = reference * (1 + make_noise(rng, 500, first, growth, persistence))
        report = compare_losses(number(reference), number(candidate))
        assert not report.parted, (seed, report.describe())


def test_a_common_spike_is_no_divergence() -> None:
    rng = np.random.default_rng(3)
    reference = make_loss(rng, 200)
    noise = make_noise(rng, 200, 6e-8, 0.5)
    reference[120:124] *= [3.0, 2.5, 1.7, 1.2]
    noise[120:124] *= 40  # a step that jumps amplifies what differs
    assert not compare_losses(number(reference), number(reference * (1 + noise))).parted


def test_slow_drift_is_found_though_each_step_is_small() -> None:
    rng = np.random.default_rng(5)
    reference = make_loss(rng, 1500)
    noise = make_noise(rng, 1500, 5e-5, 0.5)
    drift = np.clip(np.arange(1500) - 300, 0, None) * 1e-4
    report = compare_losses(number(reference), number(reference * (1 + noise + drift)))
    assert report.kind == "drift"
    assert 300 <= report.onset <= 500  # the drift is 2e-2 at step 500
    assert any("slowly" in note for note in report.notes)


@pytest.mark.parametrize(
    ("fault", "kind"), [("bias", "jump"), ("spike", "spike"), ("nan", "not a number"), ("shift", "jump")]
)
def test_kind_of_onset(fault: str, kind: str) -> None:
    report = compare_losses(*make_pair(1, "float32", Scenario(fault, 60, 200, 0.05)))
    assert (report.kind, report.onset) == (kind, 60)


def test_shifted_data_is_named_with_its_shift() -> None:
    report = compare_losses(*make_pair(2, "float32", Scenario("shift", 40, 200, 0.0)))
    assert report.shift == 3
    assert any("3 steps ahead" in note for note in report.notes)


def test_a_fault_of_the_arithmetic_is_no_shift() -> None:
    report = compare_losses(*make_pair(2, "float32", Scenario("bias", 40, 200, 0.1)))
    assert report.shift is None


def test_capture_steps_are_the_onset_and_the_step_before() -> None:
    report = compare_losses(*make_pair(1, "float32", Scenario("bias", 60, 200, 0.05)))
    assert report.capture_steps == (59, 60)
    assert "--steps 59-60" in report.describe()


def test_an_early_difference_within_bfloat16_is_told_not_judged() -> None:
    scenario = Scenario("bias", 0, 60, 4e-4)
    quiet = compare_losses(*make_pair(1, "float32", scenario))
    assert not quiet.parted
    assert any("band 'float32'" in note for note in quiet.notes)
    assert compare_losses(*make_pair(1, "float32", scenario), band="float32").onset == 0


def test_repeated_runs_measure_the_band() -> None:
    rng = np.random.default_rng(11)
    reference = make_loss(rng, 150)
    runs = [number(reference * (1 + make_noise(rng, 150, 1e-5, 0.5))) for _ in range(5)]
    clean = compare_losses(number(reference), runs[0], repeats=runs[1:])
    assert not clean.parted
    assert "4 repeated" in clean.band.method
    faulty = reference * (1 + make_noise(rng, 150, 1e-5, 0.5) + 2e-3 * (np.arange(150) >= 70))
    assert compare_losses(number(reference), number(faulty), repeats=runs[1:]).onset == 70


def test_one_repeat_makes_a_wider_band_than_four() -> None:
    rng = np.random.default_rng(12)
    reference = make_loss(rng, 100)
    run = number(reference * (1 + make_noise(rng, 100, 1e-5, 0.5)))
    one = compare_losses(number(reference), run, repeats=[run])
    four = compare_losses(number(reference), run, repeats=[run] * 4)
    assert one.limit == pytest.approx(2 * four.limit)


def test_trend_and_errors_are_those_of_the_curves() -> None:
    reference = [(step, 2.0) for step in range(50)]
    candidate = [(step, 2.0 + 0.02 * max(0, step - 9)) for step in range(50)]
    report = compare_losses(reference, candidate)
    assert report.onset == 10
    assert report.trend == pytest.approx(0.01)
    assert report.max_error == pytest.approx(0.4)
    assert report.max_error_step == 49
    assert report.mean_error == pytest.approx(sum(0.01 * k for k in range(1, 41)) / 50)


def test_a_curve_through_zero_has_finite_errors() -> None:
    values = np.sin(np.arange(100) / 10)
    report = compare_losses(number(values), number(values + 1e-9))
    assert not report.parted
    assert report.max_error < 1e-6
