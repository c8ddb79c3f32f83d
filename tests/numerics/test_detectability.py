"""The error that a passed record says it would have shown is shown indeed, and a third of it is not."""

from __future__ import annotations

import numpy as np
import pytest

from precision_align.core.dtypes import dtype_of
from precision_align.core.terms import Status
from precision_align.numerics.judgement import Scale, judge, round_once


def store(values, dtype):
    rounded = round_once(values, dtype)
    return values.astype(np.float32).astype(np.float64) if rounded is None else rounded


def judge_gain(dtype, size, error, coefficient=8.0):
    """A conforming build of an operator, times 1 + error."""
    generator = np.random.default_rng(size)
    golden = generator.standard_normal((size // 16, 16))
    noise = 0.1 * dtype.roundoff * generator.standard_normal((2, *golden.shape))
    native = store(golden * (1 + noise[0]), dtype)
    actual = store(golden * (1 + noise[1]) * (1 + error), dtype)
    return judge(actual, golden, native, Scale(np.abs(golden), coefficient, formula=True), dtype)


@pytest.mark.parametrize("size", [32, 1024, 65536])
@pytest.mark.parametrize("name", ["float32", "float16", "bfloat16"])
def test_what_is_said_to_be_detectable_is_detected(name, size):
    dtype = dtype_of(name)
    found = judge_gain(dtype, size, 0.0)
    assert found.status in (Status.PASS, Status.WARN)
    shown = {key: value for key, value in found.metrics.items() if key.startswith("detectable_")}
    smallest = min(shown.values())
    assert judge_gain(dtype, size, 1.5 * smallest).status == Status.FAIL, shown
    assert judge_gain(dtype, size, smallest / 3).status != Status.FAIL, shown


def test_the_mean_sees_less_than_the_bound_in_many_bfloat16_values():
    shown = judge_gain(dtype_of("bfloat16"), 65536, 0.0).metrics
    assert shown["detectable_bias"] < 0.1 * shown["detectable_z"]


def test_few_values_have_no_ratio_and_no_mean():
    shown = judge_gain(dtype_of("bfloat16"), 32, 0.0).metrics
    assert [key for key in shown if key.startswith("detectable_")] == ["detectable_z"]


def test_a_failed_record_says_nothing_of_what_would_have_been_seen():
    shown = judge_gain(dtype_of("float32"), 1024, 1.0).metrics
    assert not [key for key in shown if key.startswith("detectable_")]
