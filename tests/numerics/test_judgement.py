"""The local test's edge cases: facts 4.11 and the order of its checks, on plain arrays."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from precision_align.core.dtypes import dtype_of
from precision_align.core.terms import Status
from precision_align.numerics.judgement import Scale, judge, judge_exact
from precision_align.numerics.limits import LIMITS, U32

F32, F16, BF16, E4M3 = (dtype_of(name) for name in ("float32", "float16", "bfloat16", "float8_e4m3fn"))
FLOATS = [F32, F16, BF16]
BENIGN = (Status.PASS, Status.WARN)


def store(values, dtype):
    """float64 values rounded to nearest even in a dtype, as float64."""
    values = np.asarray(values, np.float64)
    with np.errstate(all="ignore"):
        if dtype.name == "bfloat16":
            words = values.astype(np.float32).view(np.uint32).astype(np.uint64)
            rounded = (words + 0x7FFF + ((words >> 16) & 1)) >> 16
            return (rounded.astype(np.uint32) << 16).view(np.float32).astype(np.float64).reshape(values.shape)
        return values.astype(dtype.word).astype(np.float64)


def exact(golden, dtype, actual, native=None, coefficient=1.0, **options):
    """Judge against a golden whose scale is itself (add, mul, scale)."""
    golden, actual = np.asarray(golden, np.float64), np.asarray(actual, np.float64)
    native = store(golden, dtype) if native is None else np.asarray(native, np.float64)
    size = np.abs(np.nan_to_num(golden, posinf=0, neginf=0))
    scale = Scale(size, coefficient, formula=True, decomposable=False)
    return judge(actual, golden, native, scale, dtype, **options)


def noise(shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


# Facts 4.11, row by row


def test_overflow_to_inf_on_both_sides_passes():
    golden = np.array([[1.0, 4.0, 9.0, 90000.0]])
    assert exact(golden, F16, [[1, 4, 9, math.inf]]).status == Status.PASS


def test_saturated_maximum_for_inf_is_the_saturation_mode():
    found = exact([[1.0, 4.0, 9.0, 90000.0]], F16, [[1, 4, 9, 65504]])
    assert (found.status, "saturation" in found.why) == (Status.MODE, True)
    assert found.metrics["worst_index"] == 3


def test_saturation_with_zero_for_nan_is_the_same_mode():
    golden = np.array([1.0, 90000.0, math.nan, -90000.0])
    native = np.array([1.0, math.inf, math.nan, -math.inf])
    assert exact(golden, F16, [1, 65504, 0, -65504], native).status == Status.MODE


def test_saturation_does_not_hide_a_wrong_value_beside_it():
    golden = np.concatenate([np.linspace(1, 2, 300), [90000.0]])
    actual = np.concatenate([1.1 * np.linspace(1, 2, 300), [65504.0]])
    assert exact(golden, F16, actual).status == Status.FAIL


@pytest.mark.parametrize("other", [65504.0, 65472.0])
def test_next_to_the_overflow_threshold_passes(other):
    assert exact([[65484.8, 1.0]], F16, [[other, 1]], [[65472.0, 1.0]]).status in BENIGN


def test_a_threshold_value_may_go_either_way():
    golden = np.array([65519.99, 1.0])
    assert exact(golden, F16, [math.inf, 1], [65504.0, 1]).status in BENIGN
    assert exact([65520.01, 1.0], F16, [65504.0, 1], [math.inf, 1]).status in BENIGN


def test_nan_on_both_sides_passes():
    golden = np.full((1, 4), math.nan)
    assert exact(golden, F32, golden).status == Status.PASS


def test_zero_for_nan_is_not_a_pass():
    golden = np.full((1, 4), math.nan)
    assert exact(golden, F32, np.zeros((1, 4)), golden).status in (Status.FAIL, Status.MODE)


@pytest.mark.parametrize("dtype", FLOATS)
def test_all_zero_and_equal(dtype):
    assert exact(np.zeros((64, 64)), dtype, np.zeros((64, 64))).status == Status.PASS


def test_garbage_where_zero_is_expected():
    assert exact(np.zeros((64, 64)), F32, np.full((64, 64), 1e-30)).status == Status.FAIL
    assert exact(np.zeros((64, 64)), F32, np.full((64, 64), 1e-38)).status in BENIGN


@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0, 2)])
def test_empty_passes(shape):
    assert exact(np.zeros(shape), F32, np.zeros(shape)).status == Status.PASS
    assert judge_exact(np.zeros(shape), np.zeros(shape)).status == Status.PASS


def test_empty_of_another_shape_fails():
    assert exact(np.zeros((0, 3)), F32, np.zeros((0, 4))).status == Status.FAIL
    assert judge_exact(np.zeros((0, 3)), np.zeros((3, 0))).status == Status.FAIL


def test_scalars():
    golden = np.array(1.0 + 1e-9)
    assert exact(golden, F32, np.array(1.0)).status == Status.PASS
    assert exact(golden, F32, np.array(1.0 + 2.4e-7)).status == Status.WARN
    assert exact(golden, F32, np.array(1.0 + 2.4e-6)).status == Status.FAIL


def test_negative_zero_equals_zero():
    assert judge_exact(np.array([-0.0, 1.0]), np.array([0.0, 1.0])).status == Status.PASS
    assert exact([0.0, 1.0], F32, [-0.0, 1.0]).status == Status.PASS


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", [0, 17, 999])
@pytest.mark.parametrize("dtype", FLOATS)
def test_one_nonfinite_value_on_one_side_fails(bad, place, dtype):
    golden = np.full(1000, 2.0)
    actual = golden.copy()
    actual[place] = bad
    found = exact(golden, dtype, actual)
    assert found.status == Status.FAIL
    assert found.metrics["worst_index"] == place
    mirrored = golden.copy()
    mirrored[place] = bad
    assert exact(mirrored, dtype, golden, mirrored).status in (Status.FAIL, Status.MODE)


def test_wrong_sign_of_infinity_fails():
    assert exact([math.inf, 1.0], F16, [-math.inf, 1.0], [math.inf, 1.0]).status == Status.FAIL


def test_an_overflow_that_the_reference_has_too_passes():
    """exp(89) - style intermediates: float64 is finite, float32 is not, on both sides."""
    golden, native = np.array([1.0, 2.0, 3.0]), np.array([1.0, math.inf, math.nan])
    assert exact(golden, F32, [1.0, math.inf, math.nan], native).status == Status.PASS
    assert exact(golden, F32, [1.0, math.nan, math.nan], native).status == Status.FAIL


def test_one_sparse_outlier():
    golden = store(noise(4096), BF16)
    actual = golden.copy()
    actual[7] *= 1.5
    found = exact(golden, BF16, actual)
    assert (found.status, found.metrics["worst_index"]) == (Status.FAIL, 7)


@pytest.mark.parametrize("dtype", FLOATS)
def test_one_element_in_a_million(dtype):
    golden = 2 * store(noise((1000, 1000)), dtype) + 0.25
    actual = store(golden, dtype)
    actual.flat[123456] += 1e-3 if dtype is F32 else 0.2
    found = exact(golden, dtype, actual)
    assert (found.status, found.metrics["worst_index"]) == (Status.FAIL, 123456)


def test_flushed_fp16_subnormals_warn():
    golden = store(noise((256, 256)) * 1e-5, F16) * 0.5
    actual = store(golden, F16)
    actual[np.abs(actual) < F16.smallest] = 0.0
    found = exact(golden, F16, actual)
    assert (found.status, "subnormal" in found.why) == (Status.WARN, True)


def test_flushed_subnormals_do_not_hide_other_errors():
    golden = np.concatenate([np.full(600, 2.5e-5), np.full(600, 1.0)])
    actual = golden.copy()
    actual[:600] = 0.0
    actual[900] = 1.5
    assert exact(golden, F16, actual).status == Status.FAIL
    systematic = golden.copy()
    systematic[:600], systematic[600:] = 0.0, 1.0 + 2.0**-10
    assert exact(golden, F16, systematic).status == Status.FAIL


def test_transposed_values_fail():
    golden = noise((64, 64)) * 3
    assert exact(golden, F32, store(golden, F32).T).status == Status.FAIL
    assert exact(golden, F32, store(golden, F32)).status == Status.PASS


def test_fp32_values_on_the_bf16_grid_fail():
    golden = noise((512, 512)) * 1.7
    assert exact(golden, F32, store(golden, BF16)).status == Status.FAIL


# Integers, booleans, exact classes


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int8", "int16", "int32", "int64", "uint64"])
def test_exact_kinds(dtype):
    expected = (np.arange(300) % 2).astype(dtype)
    actual = expected.copy()
    assert judge_exact(actual, expected).status == Status.PASS
    actual[299] = 1 - actual[299]
    found = judge_exact(actual, expected)
    assert (found.status, found.metrics["worst_index"]) == (Status.FAIL, 299)
    assert found.metrics["mismatched"] == pytest.approx(1 / 300)


def test_int64_beyond_float64_is_exact():
    expected = np.array([2**62, 2**53], np.int64)
    assert judge_exact(expected + 1, expected).metrics["mismatched"] == 1.0


def test_wrapped_and_saturated_integers_differ():
    assert judge_exact(np.array([-128], np.int8), np.array([127], np.int8)).status == Status.FAIL


def test_exact_nan_pattern():
    left, right = np.array([math.nan, 1.0]), np.array([math.nan, math.nan])
    assert judge_exact(left, left.copy()).status == Status.PASS
    assert judge_exact(left, right).status == Status.FAIL
    assert judge_exact(np.array([math.inf]), np.array([-math.inf])).status == Status.FAIL
    assert judge_exact(np.array([complex(math.nan, 1)]), np.array([complex(math.nan, 2)])).status == Status.PASS


# Complex


def test_complex_parts_are_both_judged():
    dtype = dtype_of("complex64")
    golden = noise((64, 64)) + 1j * noise((64, 64), 1)
    scale = Scale(np.abs(golden), 1.0, formula=True)
    good = golden.astype(np.complex64).astype(np.complex128)
    native = np.roll(good, 0) * (1 + 1e-9)
    assert judge(good, golden, native, scale, dtype).status in BENIGN
    for part in (1.0, 1j):
        wrong = good.copy()
        wrong[3, 5] += 1e-3 * part
        found = judge(wrong, golden, native, scale, dtype)
        assert found.status == Status.FAIL
        conjugate = judge(good.conj(), golden, native, scale, dtype)
        assert conjugate.status == Status.FAIL
    broken = good.copy()
    broken[0, 0] = complex(1, math.nan)
    assert judge(broken, golden, native, scale, dtype).status == Status.FAIL


# The metrics that come with a verdict


def test_every_limit_has_a_place_and_a_reason():
    golden = noise(1000)
    found = exact(golden, F32, store(golden * 1.01, F32))
    assert found.limit is not None
    assert found.limit.origin
    assert found.metrics[found.limit.metric] > found.limit.value
    assert found.metrics["rel_l2"] == pytest.approx(0.01, rel=1e-3)


def test_worst_index_is_a_place_in_the_whole_tensor():
    golden = noise((20, 50)) + 3
    golden[0, :7] = math.nan
    actual = store(golden, F32)
    actual[4, 2] += 1.0
    found = exact(golden, F32, actual, store(golden, F32))
    assert (found.status, found.metrics["worst_index"]) == (Status.FAIL, 4 * 50 + 2)
    complexes = (golden + 2j).ravel()
    wrong = complexes.copy()
    wrong[333] += 1.0
    scale = Scale(np.abs(np.nan_to_num(complexes)), 1.0, formula=True)
    found = judge(wrong, complexes, complexes * (1 + 1e-8), scale, dtype_of("complex64"))
    assert found.metrics["worst_index"] == 333


def test_nonfinite_inputs_make_a_differing_pattern_inconclusive():
    golden = np.concatenate([np.linspace(1, 2, 100), [math.nan, math.inf]])
    actual = np.concatenate([np.linspace(1, 2, 100), [0.0, 1.0]])
    native = store(golden, F32)
    assert exact(golden, F32, actual, native).status == Status.FAIL
    assert exact(golden, F32, actual, native, finite_inputs=False).status == Status.INCONCLUSIVE
    assert exact(golden, F32, native * 1, native, finite_inputs=False).status == Status.PASS
    wrong = actual.copy()
    wrong[3] *= 1.01
    assert exact(golden, F32, wrong, native, finite_inputs=False).status == Status.FAIL
    made = native.copy()
    made[3] = math.nan  # NaN where the reference is finite: whatever went in, that is a fault
    assert exact(golden, F32, made, native, finite_inputs=False).status == Status.FAIL


def test_nan_scale_and_infinite_scale_do_not_open_the_bound():
    golden = noise(1000)
    actual = store(golden, F32)
    actual[0] += 1.0
    for bad in (math.nan, math.inf):
        scale = Scale(np.full(1000, bad), 4.0, formula=True)
        assert judge(actual, golden, store(golden, F32), scale, F32).status == Status.FAIL


def test_nonfinite_native_does_not_open_the_ratio():
    golden = noise(1000)
    native = store(golden, F32)
    native[5] = math.inf
    actual = store(golden * 1.001, F32)
    scale = Scale(np.abs(golden), 1.0)  # perturbation scale: relaxed by the native error
    assert judge(actual, golden, native, scale, F32).status == Status.FAIL


# Bias and groups


@pytest.mark.parametrize("dtype", [BF16, F16])
@pytest.mark.parametrize(("shift", "status"), [(0.0, Status.PASS), (0.02, Status.WARN), (0.1, Status.FAIL)])
def test_uniform_relative_shift_far_below_the_dtype(dtype, shift, status):
    golden = np.exp(noise(262_144))
    actual = store(golden * (1 + shift * dtype.roundoff), dtype)
    native = store(golden * (1 + 1e-9 * noise(262_144, 1)), dtype)
    assert exact(golden, dtype, actual, native).status == status


@pytest.mark.parametrize("dtype", [BF16, F16])
@pytest.mark.parametrize("axis", [0, 1])
def test_shift_of_whole_rows_or_columns(dtype, axis):
    golden = np.exp(noise((512, 512)))
    shape = (512, 1) if axis == 0 else (1, 512)
    actual = store(golden * (1 + 0.5 * dtype.roundoff * noise(shape, 1)), dtype)
    found = exact(golden, dtype, actual)
    assert found.status == Status.FAIL
    assert found.metrics["group_bias"] > LIMITS.group_fail


@pytest.mark.parametrize("dtype", [BF16, F16])
def test_truncating_store_fails_by_bias_alone(dtype):
    golden = noise(65_536)
    nearest = store(golden, dtype)
    spacing = 2 * dtype.roundoff * 2.0 ** np.floor(np.log2(np.abs(golden)))
    truncated = np.where(np.abs(nearest) > np.abs(golden), nearest - np.sign(golden) * spacing, nearest)
    truncated = store(truncated, dtype)
    found = exact(golden, dtype, truncated)
    assert found.status == Status.FAIL
    assert found.metrics["z"] < LIMITS.z_fail


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 2**32 - 1),
    size=st.integers(1, 3000),
    spread=st.sampled_from([1e-6, 1.0, 1e6]),
    dtype=st.sampled_from(FLOATS),
)
def test_correctly_rounded_results_never_fail(seed, size, spread, dtype):
    """Any golden, actual and native each within fp32 noise of it and rounded once."""
    rng = np.random.default_rng(seed)
    golden = rng.standard_normal(size) * spread * np.exp(rng.standard_normal(size))
    golden = np.clip(golden, -dtype.maximum / 2, dtype.maximum / 2)
    jitter = lambda: store(golden * (1 + U32 * rng.uniform(-1, 1, size)), dtype)  # noqa: E731
    assert exact(golden, dtype, jitter(), jitter()).status == Status.PASS


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 2**32 - 1),
    size=st.integers(1, 3000),
    dtype=st.sampled_from(FLOATS),
    where=st.floats(0, 1, exclude_max=True),
    factor=st.sampled_from([-1.0, 0.5, 1.1, 2.0, 1024.0]),
)
def test_one_wrong_element_always_fails(seed, size, dtype, where, factor):
    golden = np.random.default_rng(seed).standard_normal(size) + 3.0
    actual = store(golden, dtype)
    place = int(where * size)
    actual[place] = store(actual[place] * factor, dtype)
    found = exact(golden, dtype, actual)
    assert (found.status, found.metrics["worst_index"]) == (Status.FAIL, place)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.lists(st.floats(width=16), min_size=1, max_size=40), st.lists(st.floats(width=16), min_size=1, max_size=40))
def test_any_values_give_a_verdict_and_never_pass_a_pattern_break(left, right):
    size = min(len(left), len(right))
    actual, golden = np.array(left[:size]), np.array(right[:size])
    found = exact(golden, F16, actual, golden)
    pattern = np.isnan(actual) == np.isnan(golden)
    if not pattern.all():
        assert found.status in (Status.FAIL, Status.MODE)
    if np.array_equal(actual, golden, equal_nan=True):
        assert found.status == Status.PASS
    assert all(isinstance(value, float) for value in found.metrics.values())
