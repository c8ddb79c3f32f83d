"""The text plot: its size, its alphabet, and where marks stand."""

from __future__ import annotations

import math
import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from precision_align.reporting.losses import describe_losses
from precision_align.reporting.resultpages import render_page
from precision_align.training.curves import compare_losses

REFERENCE = [(step, 3.0 - step / 50) for step in range(100)]
CANDIDATE = [(step, value * (1.1 if step >= 40 else 1.0)) for step, value in REFERENCE]


@pytest.mark.parametrize("width", [40, 72, 120])
@pytest.mark.parametrize("ascii_only", [False, True])
def test_lines_fit_the_width(width: int, ascii_only: bool) -> None:
    lines = compare_losses(REFERENCE, CANDIDATE).plot(width, ascii_only=ascii_only).splitlines()
    assert max(len(line) for line in lines[1:]) <= width
    assert max(len(line) for line in lines[1:]) >= width - 2


def test_no_character_is_wide_anywhere() -> None:
    text = compare_losses(REFERENCE, CANDIDATE).plot()
    assert {unicodedata.east_asian_width(character) for character in text} <= {"N", "Na"}
    assert compare_losses(REFERENCE, CANDIDATE).plot(ascii_only=True).isascii()


def test_onset_is_marked_in_its_column() -> None:
    lines = compare_losses(REFERENCE, CANDIDATE).plot(112, ascii_only=True).splitlines()
    axes = [line for line in lines if "+" in line and "^" in line]
    columns = 112 - 12
    assert len(axes) == 2
    assert all(abs(axis.index("^") - 12 - 40 / 99 * (columns - 1)) <= 1 for axis in axes)
    assert lines[-1].endswith("^ step 40: the curves part")


def test_curves_together_have_no_mark() -> None:
    text = compare_losses(REFERENCE, REFERENCE).plot(ascii_only=True)
    assert "^" not in text
    assert "#" not in text.split("difference")[0].split("\n", 1)[1]  # only common cells in the upper plot


def test_the_candidate_stands_above_where_it_is_larger() -> None:
    lines = compare_losses(REFERENCE, CANDIDATE).plot(112, ascii_only=True).splitlines()[1:13]
    last = [line[-1] if len(line) == 112 else " " for line in lines]
    assert last.index("#") < last.index(".")


def test_values_that_are_not_finite_are_marked() -> None:
    broken = [(step, math.nan if step == 50 else value) for step, value in REFERENCE]
    lines = compare_losses(REFERENCE, broken).plot(ascii_only=True).splitlines()
    assert "N" in lines[1]


@settings(max_examples=40)  # each renders a page twice
@given(
    st.lists(st.floats(allow_nan=True, allow_infinity=True, width=64), min_size=1, max_size=40),
    st.lists(st.floats(allow_nan=True, allow_infinity=True, width=64), min_size=1, max_size=40),
    st.integers(min_value=-5, max_value=200),
)
def test_any_values_can_be_compared_drawn_and_described(left: list[float], right: list[float], width: int) -> None:
    report = compare_losses(list(enumerate(left)), list(enumerate(right)))
    assert report.plot(width)
    for language in ("en", "zh"):
        assert render_page(describe_losses(report, language), max(width, 1))
    assert report.to_curve().onset == report.onset
    equal = all(a == b or (math.isnan(a) and math.isnan(b)) for a, b in zip(left, right))
    assert not (equal and report.parted)
