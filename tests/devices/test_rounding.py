"""HF32, TF32 and exp against exact arithmetic."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from precision_align.devices.rounding import exp_polynomially, round_mantissa, round_mantissa_exactly, round_to

pytestmark = pytest.mark.live
words = st.integers(0, 2**32 - 1)


def as_floats(bits: list[int]) -> torch.Tensor:
    return torch.from_numpy(np.array(bits, dtype=np.uint32).view(np.float32).copy())


def bits_of(values: torch.Tensor) -> list[int]:
    return values.numpy().view(np.uint32).tolist()


def round_by_definition(bits: int, kept: int) -> int:
    """Round to nearest even on the word, as an independent statement in Python integers."""
    exponent, dropped = (bits >> 23) & 0xFF, 23 - kept
    if exponent == 0xFF:
        return bits
    low = bits & ((1 << dropped) - 1)
    base, half = bits - low, 1 << (dropped - 1)
    up = low > half or (low == half and (base >> dropped) & 1)
    return base + (1 << dropped) if up else base


@given(st.lists(words, min_size=1, max_size=40), st.sampled_from([10, 11]))
def test_both_ways_round_every_float_by_the_definition(bits: list[int], kept: int) -> None:
    expected = [round_by_definition(one, kept) for one in bits]
    assert bits_of(round_mantissa_exactly(as_floats(bits), kept)) == expected
    assert bits_of(round_mantissa(as_floats(bits), kept)) == expected
    for one, wanted in zip(bits, expected):
        assert bits_of(round_mantissa(as_floats([one]), kept)) == [wanted]


@pytest.mark.parametrize(
    "value", [0.0, -0.0, float("inf"), float("-inf"), 3.4028234663852886e38, 2.0**115, 1e-40, -1e-45, 2.0**-126]
)
def test_the_edges_of_the_range(value: float) -> None:
    values = torch.tensor([value, 1.0 + 2.0**-12])
    expected = [round_by_definition(one, 11) for one in bits_of(values)]
    assert bits_of(round_mantissa(values, 11)) == expected


def test_nan_stays_nan_and_the_rest_is_still_rounded() -> None:
    rounded = round_mantissa(torch.tensor([float("nan"), 1.0 + 2.0**-13]), 11)
    assert rounded[0].isnan()
    assert rounded[1] == 1


def test_ties_away_from_zero() -> None:
    tie = torch.tensor([1.0 + 2.0**-12, -1.0 - 2.0**-12])
    assert round_mantissa(tie, 11).tolist() == [1.0, -1.0]
    assert round_mantissa(tie, 11, "away").tolist() == [1.0 + 2.0**-11, -1.0 - 2.0**-11]


def test_rounding_keeps_shape_strides_and_other_dtypes() -> None:
    matrix = torch.randn(4, 6).t()
    assert round_to(matrix, "hf32").stride() == matrix.stride()
    assert round_to(torch.randn(0, 3), "hf32").shape == (0, 3)
    half = torch.randn(3).half()
    assert round_to(half, "hf32") is half
    assert round_to(matrix, "float32") is matrix
    assert torch.equal(round_to(matrix, "float16"), matrix.half().float())


@given(st.lists(st.floats(-85, 85, width=32), min_size=1, max_size=30))
def test_exp_is_within_its_stated_error(values: list[float]) -> None:
    exact = np.exp(np.array(values, dtype=np.float32).astype(np.float64))
    computed = exp_polynomially(torch.tensor(values)).numpy().astype(np.float64)
    # The stated 4e-6 for the polynomial; the scaling x * log2(e) in float32 adds up to |x| * 2^-24.
    assert np.all(np.abs(computed - exact) <= (4e-6 + np.abs(values) * 2.0**-23) * exact)


def test_exp_at_the_ends() -> None:
    ends = exp_polynomially(torch.tensor([float("-inf"), -200.0, 0.0, 100.0, float("inf"), float("nan")]))
    assert ends[:5].tolist() == [0, 0, 1, float("inf"), float("inf")]
    assert ends[5].isnan()
