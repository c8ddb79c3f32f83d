"""assert_aligned in a user's test."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import precision_align as pa
from precision_align.core.errors import UsageError

X = torch.randn(32, 64, generator=torch.Generator().manual_seed(0))
WEIGHT = 1 + 0.1 * torch.randn(64, generator=torch.Generator().manual_seed(1))


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float = 1e-6) -> torch.Tensor:
    wide = x.float()
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps) * weight.float()).to(x.dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_rounding_is_aligned(dtype: torch.dtype) -> None:
    x = X.to(dtype)
    pa.assert_aligned(x * (1 + torch.finfo(dtype).eps / 2), x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_five_percent_is_not(dtype: torch.dtype) -> None:
    with pytest.raises(AssertionError, match="largest difference"):
        pa.assert_aligned(X.to(dtype) * 1.05, X.to(dtype))


def test_trees_name_the_place() -> None:
    pa.assert_aligned({"a": [X, 1], "b": (np.ones(3),)}, {"a": [X, 1], "b": (np.ones(3),)})
    with pytest.raises(AssertionError, match=r"^a\.0 is not aligned.*worst at \(0, 1\)"):
        pa.assert_aligned({"a": [torch.tensor([[1.0, 2.0]])]}, {"a": [torch.tensor([[1.0, 3.0]])]})
    with pytest.raises(AssertionError, match="structures differ"):
        pa.assert_aligned([X, X], [X])


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_nan_never_passes(bad: float) -> None:
    wrong = X.clone()
    wrong[-1, -1] = bad
    with pytest.raises(AssertionError, match="NaN or Inf on one side only"):
        pa.assert_aligned(wrong, X)


def test_integers_are_exact() -> None:
    pa.assert_aligned(torch.arange(5), torch.arange(5))
    with pytest.raises(AssertionError, match="1 of 5"):
        pa.assert_aligned(torch.tensor([0, 1, 2, 3, 5]), torch.arange(5))
    with pytest.raises(AssertionError):
        pa.assert_aligned(3, 4)


def test_shapes_must_agree() -> None:
    with pytest.raises(AssertionError, match="shape"):
        pa.assert_aligned(X, X[:1])


@pytest.mark.parametrize(("dtype", "error"), [(torch.float32, 2e-3), (torch.bfloat16, 1e-2)])
def test_the_golden_of_an_operator_sees_more(dtype: torch.dtype, error: float) -> None:
    x, weight = X.to(dtype), WEIGHT.to(dtype)
    right = rms_norm(x, weight)
    wide = x.float()
    size = torch.sqrt(wide.square().flip(-1).mean(-1, keepdim=True) + 1e-6)
    reordered = (wide / size * weight.float()).to(dtype)
    inputs = {"x": x, "weight": weight}
    pa.assert_aligned(reordered, right, op="rms_norm", inputs=inputs)
    wrong = (right.double() * (1 + error)).to(dtype)
    pa.assert_aligned(wrong, right, dtype="bfloat16")  # raw: below what the dtype may be off by
    with pytest.raises(AssertionError, match=r"float64|shifted|larger"):
        pa.assert_aligned(wrong, right, op="rms_norm", inputs=inputs)


def test_wrong_arguments_say_what_to_do() -> None:
    with pytest.raises(UsageError, match=r"one of adamw, .*attention"):
        pa.assert_aligned(X, X, op="nonesuch", inputs={})
    with pytest.raises(UsageError, match="inputs="):
        pa.assert_aligned(X, X, op="rms_norm")
    with pytest.raises(UsageError, match="op="):
        pa.assert_aligned(X, X, inputs={"x": X})
    with pytest.raises(UsageError, match="unknown dtype"):
        pa.assert_aligned(X, X, dtype="float7")
