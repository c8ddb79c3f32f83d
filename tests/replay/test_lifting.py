"""Float64 means float64: whatever the code casts, creates or calls on its way."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
import torch
from torch.nn import functional

from precision_align.replay.lifting import LiftingMode, Unliftable, lift
from precision_align.replay.replayability import NotReplayable

X = torch.randn(6, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
THIRD = torch.full((8,), 1 / 3)


@contextlib.contextmanager
def lifted(**options):
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with torch.no_grad(), LiftingMode(**options):
            yield
    finally:
        torch.set_default_dtype(default)


class Third(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return (x.float() / 3).to(x.dtype)

    @staticmethod
    def backward(ctx, gradient):
        return gradient.float() / 3


def in_autocast(x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return x @ x.T / 3


def accumulate(x):
    total = torch.zeros(6, 8, dtype=torch.float32)
    total += x.half() / 3
    return total.index_add_(0, torch.arange(6), x.float())


SAME = {  # code that means the same in float64 -> what it means
    "float": (lambda x: x.float() / 3, lambda x: x / 3),
    "half and back": (lambda x: (x.half() / 3).to(x.dtype), lambda x: x / 3),
    "softmax dtype": (lambda x: torch.softmax(x.bfloat16(), -1, dtype=torch.float32), lambda x: torch.softmax(x, -1)),
    "sum dtype": (lambda x: x.sum(0, dtype=torch.float32) / 3, lambda x: x.sum(0) / 3),
    "cumsum dtype": (lambda x: x.cumsum(0, dtype=torch.bfloat16) / 3, lambda x: x.cumsum(0) / 3),
    "zeros": (lambda x: torch.zeros(6, 8, dtype=torch.float32).add_(x / 3), lambda x: x / 3),
    "full": (lambda x: torch.full((8,), 1 / 3, dtype=torch.bfloat16) * x, lambda x: x / 3),
    "ones default": (lambda x: torch.ones(8).div_(3) * x, lambda x: x / 3),
    "new_zeros": (lambda x: x.float().new_zeros(6, 8) + x / 3, lambda x: x / 3),
    "empty_like out": (lambda x: torch.div(x.float(), 3, out=torch.empty_like(x.float())), lambda x: x / 3),
    "arange": (lambda x: torch.arange(8, dtype=torch.float32) / 3 * x, lambda x: torch.arange(8.0).double() / 3 * x),
    "linspace": (lambda x: torch.linspace(0, 1, 8, dtype=torch.half) * x, lambda x: torch.arange(8).double() / 7 * x),
    "accumulator": (accumulate, lambda x: x / 3 + x),
    "type": (lambda x: x.type(torch.FloatTensor) / 3, lambda x: x / 3),
    "type_as": (lambda x: (x / 3).type_as(torch.zeros(1, dtype=torch.float16)), lambda x: x / 3),
    "autocast": (in_autocast, lambda x: x @ x.T / 3),
    "einsum": (lambda x: torch.einsum("ij,kj->ik", x.half(), x.half()), lambda x: x @ x.T),
    "complex": (lambda x: torch.fft.fft(x.float()).abs() / 3, lambda x: torch.fft.fft(x).abs() / 3),
    "complex64": (lambda x: torch.complex(x.float(), x.float()).to(torch.complex64).imag / 3, lambda x: x / 3),
    "normalize": (lambda x: functional.normalize(x.half()), lambda x: functional.normalize(x)),
    "weights of another dtype": (
        lambda x: functional.layer_norm(x, (8,), torch.ones(8, dtype=torch.float32)),
        lambda x: functional.layer_norm(x, (8,)),
    ),
    "attention": (
        lambda x: functional.scaled_dot_product_attention(*[x.float()[None, None]] * 3)[0, 0],
        lambda x: torch.softmax(x @ x.T / 8**0.5, -1) @ x,
    ),
    "autograd.Function": (Third.apply, lambda x: x / 3),
    "vmap": (lambda x: torch.vmap(lambda row: row.float() / 3)(x), lambda x: x / 3),
    "view of the same dtype": (lambda x: x.view(x.dtype) / 3, lambda x: x / 3),
    "captured constant": (lambda x: THIRD.clone().mul_(x[0]), lambda x: THIRD.double() * x[0]),
    "numpy constant": (
        lambda x: torch.from_numpy(np.full(8, 0.1, np.float32)) * x,
        lambda x: float(np.float32(0.1)) * x,
    ),
}


@pytest.mark.parametrize("name", SAME)
def test_code_is_lifted(name):
    code, meaning = SAME[name]
    with lifted():
        found = code(X)
    assert found.dtype == torch.float64
    torch.testing.assert_close(found, meaning(X), rtol=1e-14, atol=1e-14)


def test_gradients_are_lifted():
    x = X.clone().requires_grad_()
    with LiftingMode():
        gradient = torch.autograd.grad(Third.apply(x).float().sum(), x)[0]
    torch.testing.assert_close(gradient, torch.full_like(X, 1 / 3), rtol=1e-15, atol=0)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_float8_casts_are_the_function_of_the_code(dtype):
    with lifted():
        found = X.to(dtype).float() / 3
    torch.testing.assert_close(found, X.float().to(dtype).double() / 3, rtol=1e-15, atol=0)


def test_quantisation_is_the_function_of_the_code():
    with lifted():
        found = torch.fake_quantize_per_tensor_affine(X, 0.1, 0, -128, 127)
    expected = torch.fake_quantize_per_tensor_affine(X.float(), 0.1, 0, -128, 127)
    torch.testing.assert_close(found.float(), expected)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8])
def test_reading_bits_is_refused(dtype):
    with lifted(), pytest.raises(Unliftable, match="bits"):
        X.view(dtype)


def test_integers_are_left_alone():
    with lifted():
        assert (torch.arange(5) // 2).dtype == torch.int64
        assert torch.ones(3, dtype=torch.int32).dtype == torch.int32
        assert (X > 0).dtype == torch.bool
        assert lift(torch.zeros(2, dtype=torch.int8)).dtype == torch.int8


def test_products_under_autocast_see_rounded_operands():
    """Autocast's rounding is part of what was asked for: the golden rounds the operands and nothing else."""
    weight = torch.randn(5, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    with lifted(autocast=torch.bfloat16):
        product, elsewhere = functional.linear(X, weight), X / 3
    rounded = X.bfloat16().double() @ weight.bfloat16().double().T
    torch.testing.assert_close(product, rounded, rtol=1e-14, atol=1e-14)
    torch.testing.assert_close(elsewhere, X / 3, rtol=1e-15, atol=0)


@pytest.fixture(scope="module")
def library():
    torch.library.define("palign_test::third_low", "(Tensor x) -> Tensor")
    torch.library.define("palign_test::third_wide", "(Tensor x) -> Tensor")
    torch.library.define("palign_test::choose", "(Tensor x) -> Tensor")
    torch.library.impl("palign_test::third_low", "cpu", lambda x: (x.float() / 3).to(x.dtype))
    torch.library.impl("palign_test::third_wide", "cpu", lambda x: x / 3)
    torch.library.impl("palign_test::choose", "cpu", lambda x: x.argmax(-1))
    return torch.ops.palign_test


def test_custom_operators_that_keep_float64_are_used(library):
    with lifted():
        torch.testing.assert_close(library.third_wide(X), X / 3, rtol=1e-15, atol=0)
        assert torch.equal(library.choose(X), X.argmax(-1))


def test_custom_operators_that_round_inside_are_refused(library):
    with lifted(), pytest.raises(NotReplayable, match="third_low"):
        library.third_low(X)


def test_pausing_and_leaving():
    with lifted():
        with LiftingMode.paused():
            assert X.float().dtype == torch.float32
        assert X.float().dtype == torch.float64
    assert X.float().dtype == torch.float32
