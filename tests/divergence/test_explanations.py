"""Each explanation is named for its own fault, and not for others."""

from __future__ import annotations

import numpy as np
import pytest

from precision_align.core.dtypes import Array
from precision_align.divergence.explanations import explain
from precision_align.divergence.ranking import measure_level

RNG = np.random.default_rng(7)
GOLDEN = RNG.normal(size=(6, 8, 16))
NOISE = 1e-7 * RNG.normal(size=GOLDEN.shape)


def halves(values: Array) -> Array:
    return np.roll(values, values.shape[-1] // 2, axis=-1)


def interleave(values: Array) -> Array:
    half = values.shape[-1] // 2
    return values[..., np.arange(values.shape[-1]).reshape(2, half).T.ravel()]


def tail(values: Array) -> Array:
    changed = values.copy()
    changed[..., -2:] = 0.0
    return changed


def token(values: Array) -> Array:
    changed = values.copy()
    changed[:, 3] += 1.0
    return changed


def dropped(values: Array) -> Array:
    return np.where(np.random.default_rng(1).random(values.shape) < 0.1, 0.0, values)


FAULTS = {
    "scaled": lambda values: values * 1.01,
    "sign": lambda values: -values,
    "shifted": lambda values: values + 0.5,
    "cast through bfloat16": lambda values: (
        (values.astype(np.float32).view(np.uint32) + 0x8000 & 0xFFFF0000).astype(np.uint32).view(np.float32)
    ).astype(np.float64),
    "cast through float16": lambda values: values.astype(np.float16).astype(np.float64),
    "clamped": lambda values: np.clip(values, -1.0, 1.0),
    "halves swapped": halves,
    "interleaved": interleave,
    "memory order": lambda values: np.swapaxes(values, -1, -2).reshape(values.shape),
    "off by one": lambda values: np.roll(values, 1, axis=1),
    "reversed": lambda values: np.flip(values, 1),
    "row statistics": lambda values: values * (1 + 0.1 * np.arange(8)[None, :, None] * np.arange(1, 7)[:, None, None]),
    "channel scales": lambda values: values * (1 + 0.1 * np.arange(16)),
    "zeroed": dropped,
}


@pytest.mark.parametrize("name", FAULTS)
def test_the_fault_is_among_the_first_three(name: str) -> None:
    found = explain(FAULTS[name](GOLDEN) + NOISE * (name not in ("zeroed", "clamped")), GOLDEN, "float32")
    assert name in [item.name for item in found[:3]], found
    assert found == sorted(found, key=lambda item: measure_level(item.residual))


@pytest.mark.parametrize(("change", "text"), [(tail, "the last 2 of dimension 2"), (token, "index 3 of dimension 1")])
def test_the_place_of_a_confined_error_is_named(change, text) -> None:
    assert any(text in item.text for item in explain(change(GOLDEN), GOLDEN, "float32"))


def test_unrelated_values_are_unexplained() -> None:
    other = np.random.default_rng(8).normal(size=GOLDEN.shape)
    assert explain(other, GOLDEN, "float32") == []
    assert explain(GOLDEN + 1e-4 * other, GOLDEN, "float32") == []


def test_equal_values_need_no_explanation() -> None:
    assert explain(GOLDEN, GOLDEN, "float32") == []


def test_nonfinite_values_do_not_stand_in_the_way() -> None:
    golden = GOLDEN.copy()
    golden[0, 0, 0] = np.nan
    golden[1, 0, 0] = np.inf
    assert explain(golden * 1.01, golden, "float32")[0].name == "scaled"


@pytest.mark.parametrize("shape", [(), (1,), (0, 4)])
def test_too_small_to_explain(shape: tuple[int, ...]) -> None:
    assert explain(np.ones(shape), np.zeros(shape), "float32") == []


@pytest.mark.parametrize(("factor", "text"), [(4.0, "a constant, 4: "), (1 / 3, "a constant, 1/3: ")])
def test_one_number_is_explained_by_whole_counts_alone(factor: float, text: str) -> None:
    (found,) = explain(np.array(factor * 0.7), np.array(0.7), "float32")
    assert text in found.text
    assert explain(np.array(factor * 0.7004), np.array(0.7), "float32") == []


def test_of_guesses_that_come_to_the_same_one_stays_and_names_the_other() -> None:
    other = 1.01 * GOLDEN
    found = explain(1.01 * GOLDEN + NOISE, GOLDEN, "float32", [("constant", "1.01 in `mul`", other)])
    assert [item.name for item in found].count("constant") <= 1
    assert found[0].name == "scaled"
