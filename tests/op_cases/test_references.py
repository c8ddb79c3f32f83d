"""What cases are judged by: native builds agree with the golden functions, and scales see cancellation inside."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from precision_align.core.dtypes import dtype_of
from precision_align.library.cases import OpCase
from precision_align.library.references import evaluate, prepare_inputs, prepare_references, to_array
from precision_align.numerics.limits import U32

OPERATORS = ("attention", "layer_norm", "rms_norm", "rope", "swiglu")


@pytest.mark.parametrize("name", OPERATORS)
def test_natives_are_right_by_the_golden_function(bench: Any, name: str) -> None:
    """All in float32; in low precision the first, which rounds once. A native that were wrong would excuse the same
    mistake in a replacement."""
    operator = bench.operator(name)
    for case in (case for case in operator.cases if not case.raises):
        for dtype in case.dtypes:
            references = prepare_references(operator, case, dtype, 5, backward=True)
            golden = references.golden.named()
            for native in references.natives if dtype == "float32" else references.natives[:1]:
                for key, value in native.named().items():
                    check_close(f"{case.id} {dtype} {key}", value, to_array(golden[key]), references.scales[key])


def check_close(place: str, native: torch.Tensor, golden: Any, scale: Any) -> None:
    dtype, actual = dtype_of(str(native.dtype)), to_array(native)
    over = np.abs(golden) > dtype.maximum
    assert np.array_equal(np.isnan(actual), np.isnan(golden)), place
    assert np.array_equal(np.isinf(actual), np.isinf(golden) | over), place
    keep = np.isfinite(golden) & ~over
    actual, golden, scale = (part[keep] for part in (actual, golden, scale))
    bound = dtype.roundoff * np.abs(golden) + 48 * U32 * scale + dtype.eta
    assert np.all(np.abs(actual - golden) <= 2 * bound), place


@pytest.mark.parametrize("name", OPERATORS)
def test_cases_are_repeatable_and_differ_by_seed(bench: Any, name: str) -> None:
    for case in bench.operator(name).cases:
        first, again, other = (prepare_inputs(case, "float32", seed) for seed in (3, 3, 4))
        tensors = [key for key, value in first.items() if torch.is_tensor(value)]
        assert all(torch.equal(first[key], again[key]) or first[key].isnan().any() for key in tensors)
        if all(first[key].numel() for key in tensors):
            assert any(not torch.equal(first[key], other[key]) for key in tensors), case.id


@pytest.mark.parametrize("name", OPERATORS)
def test_there_are_enough_cases_with_boundary_values(bench: Any, name: str) -> None:
    cases: list[OpCase] = list(bench.operator(name).cases)
    tags = {tag for case in cases for tag in case.tags}
    assert len(cases) >= 20
    assert {"tile", "size-1", "empty", "magnitude", "nonfinite", "layout"} <= tags
    assert all(case.why for case in cases)


def test_the_scale_sees_cancellation_that_inputs_cannot_show(bench: Any) -> None:
    """One key: its weight is 1, so the gradient of the query is 0 for any inputs, and yet builds round p dp - p dp."""
    operator = bench.operator("attention")
    (case,) = (case for case in operator.cases if case.id == "one-key")
    references = prepare_references(operator, case, "float32", 0, backward=True)
    assert float(references.golden.gradients["query"].abs().max()) == 0.0
    assert float(references.scales["gradient.query"].max()) > 0.1


def test_an_input_that_is_not_used_has_a_zero_gradient() -> None:
    inputs = {"x": torch.ones(3), "y": torch.ones(3)}
    result = evaluate(lambda x, y: 2 * x, inputs, ("x", "y"), {"output": torch.ones(3)})
    assert torch.equal(result.gradients["y"], torch.zeros(3))
    assert torch.equal(result.gradients["x"], torch.full((3,), 2.0))
