"""Dropout's law: rate, scale, and nothing else gets through."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from precision_align.core.dtypes import dtype_of
from precision_align.core.terms import Status
from precision_align.replay.randomness import judge_dropout

F32, F16 = dtype_of("float32"), dtype_of("float16")


def drop(values, p, seed=0, dtype=np.float32):
    mask = np.random.default_rng(seed).random(values.shape) >= p
    with np.errstate(over="ignore"):
        return (values * mask / (1 - p)).astype(dtype).astype(np.float64) if p < 1 else np.zeros_like(values)


def data(size=4000, seed=1):
    return np.random.default_rng(seed).standard_normal(size).astype(np.float32).astype(np.float64)


@pytest.mark.parametrize("p", [0.01, 0.1, 0.5, 0.9, 1.0])
def test_the_right_law_passes(p):
    assert judge_dropout(data(), drop(data(), p), nn.Dropout(p), F32).status == Status.PASS


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.integers(0, 2**32 - 1), st.floats(0.01, 0.99), st.integers(1, 500))
def test_the_right_law_never_fails(seed, p, size):
    values = data(size, seed)
    assert judge_dropout(values, drop(values, p, seed + 1), nn.Dropout(p), F32).status == Status.PASS


@pytest.mark.parametrize(("p", "used"), [(0.1, 0.2), (0.1, 0.0), (0.5, 0.4), (0.9, 0.1)])
def test_another_rate_fails(p, used):
    mask = np.random.default_rng(0).random(4000) >= used
    assert judge_dropout(data(), data() * mask / (1 - p), nn.Dropout(p), F32).status == Status.FAIL


@pytest.mark.parametrize("factor", [0.9, 1.01, 1 / 0.81])
def test_another_scale_fails(factor):
    found = judge_dropout(data(), drop(data(), 0.1) * factor, nn.Dropout(0.1), F32)
    assert (found.status, "kept values" in found.why) == (Status.FAIL, True)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 1e3])
def test_one_bad_value_fails(bad):
    output = drop(data(), 0.3)
    output[np.flatnonzero(output)[-1]] = bad
    assert judge_dropout(data(), output, nn.Dropout(0.3), F32).status == Status.FAIL


def test_values_out_of_zeros_fail():
    values = data()
    values[::2] = 0.0
    output = drop(values, 0.3)
    assert judge_dropout(values, output, nn.Dropout(0.3), F32).status == Status.PASS
    output[10] = 0.5
    assert judge_dropout(values, output, nn.Dropout(0.3), F32).status == Status.FAIL


def test_overflow_of_kept_values_is_no_fault():
    values = np.full(200, 60000.0)
    output = drop(values, 0.5, dtype=np.float16)
    assert np.isinf(output).any()
    assert judge_dropout(values, output, nn.Dropout(0.5), F16).status == Status.PASS
    assert judge_dropout(-values, output, nn.Dropout(0.5), F16).status == Status.FAIL


def test_shapes_zeros_and_unknown_laws():
    assert judge_dropout(data(8), data(9), nn.Dropout(0.5), F32).status == Status.FAIL
    assert judge_dropout(np.zeros(8), np.zeros(8), nn.Dropout(0.5), F32).status == Status.INCONCLUSIVE
    assert judge_dropout(data(8), data(8), nn.Dropout2d(0.5), F32).status == Status.INCONCLUSIVE
