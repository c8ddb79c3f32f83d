"""Explanations of order, precision, rows and range: each names its own fault, and none names another's."""

from __future__ import annotations

import numpy as np
import pytest

from precision_align.core.dtypes import dtype_of
from precision_align.divergence.explanations import explain
from precision_align.numerics.judgement import round_once

ROWS, COLUMNS = 40, 32


def draw(seed: int = 0) -> np.ndarray:
    values = np.random.default_rng(seed).standard_normal((ROWS, COLUMNS))
    return values.astype(np.float32).astype(np.float64)


def to_bfloat16(values):
    return round_once(values, dtype_of("bfloat16"))


def drop(values):
    keep = np.random.default_rng(1).random(values.shape) > 0.1
    return np.where(keep, values / 0.9, 0.0)


def overflow(values):
    return np.where(np.abs(values) > 1.5, np.inf, values)


FAULTS = {
    "permuted": lambda values: values[np.random.default_rng(2).permutation(ROWS)],
    "computed in bfloat16": to_bfloat16,
    "row shift": lambda values: (
        values - np.random.default_rng(3).standard_normal((ROWS, 1)) * np.linspace(1, 2, COLUMNS)
    ),
    "dropout": drop,
    "overflow": overflow,
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_named_among_the_first_three(name):
    golden = draw()
    assert name in [item.name for item in explain(FAULTS[name](golden), golden, "float32")[:3]]


@pytest.mark.parametrize("name", FAULTS)
def test_other_faults_are_not_given_that_name(name):
    golden = draw()
    for other, fault in FAULTS.items():
        if other != name:
            assert name not in [item.name for item in explain(fault(golden), golden, "float32")], other


def test_a_gain_that_rounding_hides_is_seen_in_the_mean():
    golden = draw()
    found = explain(to_bfloat16(to_bfloat16(golden) * 1.0013), to_bfloat16(golden), "bfloat16")
    assert found == [] or found[0].name == "scaled"
    found = explain(to_bfloat16(golden * 1.004), golden, "bfloat16")
    assert found[0].name == "scaled"
    assert float(found[0].text.split(", ")[1]) == pytest.approx(1.004, abs=5e-4)


def test_rounding_alone_has_no_gain():
    golden = draw()
    assert "scaled" not in [item.name for item in explain(to_bfloat16(golden), golden, "bfloat16")]


def test_another_form_is_ranked_by_what_it_leaves():
    golden = draw()
    actual = golden + 0.01 * draw(5)
    found = explain(actual, golden, "float32", [("gelu form", "tanh against erf", actual + 1e-6 * draw(6))])
    assert found[0].name == "gelu form"
    assert "eps" not in [item.name for item in explain(actual, golden, "float32", [("eps", "eps", golden)])]


def test_rounding_once_is_to_nearest_even_and_knows_its_dtypes():
    half = np.array([1 + 2.0**-8, 1 + 3 * 2.0**-8, -65519.0])
    np.testing.assert_array_equal(to_bfloat16(half)[:2], [1.0, 1 + 2.0**-6])
    assert round_once(half, dtype_of("float16"))[2] == -65504
    assert round_once(half, dtype_of("float32")) is None
