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
@pytest.mark.parametrize("length", [5, 40, 300, 1500])
def test_no_alarm_on_clean_curves(precision: str, band: str | None, length: int) -> None:
    given = {"exact": "float32"}.get(precision, precision) if band else None
    for seed in range(6):
        report = compare_losses(*make_pair(seed, precision, None, length), band=given)
        assert not report.parted, (seed, report)


@pytest.mark.parametrize("growth", [0.3, 0.8, 1.0])
@pytest.mark.parametrize("persistence", [0.0, 0.9])
@pytest.mark.parametrize("first", [1e-6, 1e-5, 5e-5])
def test_no_alarm_where_noise_grows_otherwise(growth: float, persistence: float, first: float) -> None:
    for seed in range(5):
        rng = np.random.default_rng(seed)
        reference = make_loss(rng, 500)
        candidate = reference * (1 + make_noise(rng, 500, first, growth, persistence))
        report = compare_losses(number(reference), number(candidate))
        assert not report.parted, (seed, report)


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
    assert (report.shift, report.cause) == (3, "data order")


def test_a_fault_of_the_arithmetic_is_no_shift() -> None:
    report = compare_losses(*make_pair(2, "float32", Scenario("bias", 40, 200, 0.1)))
    assert (report.shift, report.cause) == (None, "numerical")


def test_other_batches_of_the_same_kind_are_no_fault_of_the_arithmetic() -> None:
    rng = np.random.default_rng(4)
    reference, other = make_loss(rng, 120), make_loss(np.random.default_rng(5), 120)
    report = compare_losses(number(reference), number(np.where(np.arange(120) < 60, reference, other)))
    assert report.onset is not None
    assert abs(report.onset - 60) <= 2
    assert report.cause == "other data"


def test_added_scatter_is_not_taken_for_other_batches() -> None:
    assert compare_losses(*make_pair(3, "float32", Scenario("scatter", 60, 200, 0.3))).cause == ""


def test_capture_steps_are_the_onset_and_the_step_before() -> None:
    report = compare_losses(*make_pair(1, "float32", Scenario("bias", 60, 200, 0.05)))
    assert report.capture is not None
    assert (report.capture_steps, report.capture.steps, report.capture.payload) == ((59, 60), "59-60", "full")


def test_a_log_that_counts_from_one_is_a_step_ahead_of_a_capture() -> None:
    reference, candidate = make_pair(1, "float32", Scenario("bias", 60, 200, 0.05))
    report = compare_losses(*([(step + 1, value) for step, value in side] for side in (reference, candidate)))
    assert report.onset == 61
    assert report.capture is not None
    assert (report.capture.steps, report.capture.offset) == ("59-60", 1)


def test_all_steps_between_sparse_ones_are_wanted() -> None:
    reference, candidate = make_pair(1, "float32", Scenario("bias", 60, 200, 0.05))
    report = compare_losses(*([(10 * step, value) for step, value in side] for side in (reference, candidate)))
    assert report.capture is not None
    assert (report.capture.steps, report.capture.payload) == ("590-600", "sketch")


def test_a_fault_from_the_start_wants_the_first_steps() -> None:
    report = compare_losses(*make_pair(1, "float32", Scenario("bias", 0, 60, 0.05)))
    assert report.capture is not None
    assert (report.capture.steps, report.capture.start) == ("0", True)
    sparse = [
        [(10 * step + 10, value) for step, value in side]
        for side in make_pair(1, "float32", Scenario("bias", 0, 60, 0.05))
    ]
    later = compare_losses(*sparse).capture
    assert later is not None
    assert later.steps == "0-1,9"


def test_an_early_difference_within_bfloat16_is_told_not_judged() -> None:
    scenario = Scenario("scatter", 0, 60, 4e-4)
    quiet = compare_losses(*make_pair(1, "float32", scenario))
    assert not quiet.parted
    assert any("band 'float32'" in note for note in quiet.notes)
    parted = compare_losses(*make_pair(1, "float32", scenario), band="float32").onset
    assert parted is not None
    assert parted <= 2


@pytest.mark.parametrize("size", [4e-4, -0.01])
def test_an_offset_from_the_first_step_on_is_found_without_knowing_the_dtype(size: float) -> None:
    report = compare_losses(*make_pair(1, "float32", Scenario("bias", 0, 60, size)))
    assert (report.onset, report.kind) == (0, "jump")


@pytest.mark.parametrize("length", [2, 3, 4, 6, 12])
def test_short_curves_that_differ_by_a_quarter_part(length: int) -> None:
    reference = [(step, round(2.3 - step / 10, 1)) for step in range(length)]
    candidate = [(step, round(1.23 * value, 1)) for step, value in reference]
    assert compare_losses(reference, candidate).parted


@pytest.mark.parametrize("persistence", [0.0, 0.9])
@pytest.mark.parametrize("length", [5, 12, 40, 300])
def test_no_alarm_on_noise_of_a_fifth_of_a_percent(persistence: float, length: int) -> None:
    for seed in range(30):
        rng = np.random.default_rng(seed)
        reference = make_loss(rng, length)
        noise = make_noise(rng, length, 2e-3, 0.0, persistence)
        report = compare_losses(number(reference), number(reference * (1 + noise)))
        assert not report.parted, (seed, report)


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


@pytest.mark.parametrize("decimals", [2, 3, 4])
@pytest.mark.parametrize("noise", [1e-5, 2e-4, 8e-4])
def test_no_alarm_where_printed_digits_hide_most_of_the_noise(decimals: int, noise: float, tmp_path: Path) -> None:
    """As logs print them: noise that two decimals swallow at most steps shows a whole unit at some."""
    for seed in range(6):
        rng = np.random.default_rng([decimals, int(noise * 1e6), seed])
        values = make_loss(rng, 150)
        paths = [tmp_path / "reference.csv", tmp_path / "candidate.csv"]
        for path in paths:
            noisy = values * (1 + noise * rng.standard_normal(150))
            path.write_text("step,loss\n" + "".join(f"{i},{v:.{decimals}f}\n" for i, v in enumerate(noisy)))
        assert not compare_losses(*paths).parted
        wrong = paths[1].read_text().splitlines()[1:]
        moved = [
            f"{i},{float(line.split(',')[1]) * (1.1 if i >= 90 else 1):.{decimals}f}" for i, line in enumerate(wrong)
        ]
        paths[1].write_text("step,loss\n" + "\n".join(moved))
        assert compare_losses(*paths).onset == 90


@pytest.mark.parametrize("shift", [-1, 3])
def test_curves_that_are_moved_from_the_first_step_on(shift: int) -> None:
    """The scatter of the batches is all the difference, and passes for noise where only levels are looked at."""
    whole = make_loss(np.random.default_rng(5), 210)
    reference, candidate = number(whole[5:205]), number(whole[5 + shift : 205 + shift])
    report = compare_losses(reference, candidate)
    assert (report.onset, report.cause, report.shift) == (0, "data order", shift)
    assert any("counts its steps" in note for note in report.notes)
