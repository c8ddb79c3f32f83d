"""Golden functions of one variable against fifty digits, where a float64 formula could lose its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from precision_align.library.folders import load_golden

mpmath = pytest.importorskip("mpmath", reason="comes with torch, through sympy")

POINTS = [-30.0, -12.5, -5.0, -2.7, -1.0, -1e-3, -1e-9, 1e-9, 1e-3, 0.3, 1.0, 2.7, 9.0, 40.0]
RELATIVE = 1e-13  # float64 has 1.1e-16; the tails are exp of a product, whose rounding is amplified by up to 450


def gelu(x: Any) -> Any:
    return x * mpmath.erfc(-x / mpmath.sqrt(2)) / 2


def gelu_tanh(x: Any) -> Any:
    return x / 2 * (1 + mpmath.tanh(mpmath.sqrt(2 / mpmath.pi) * (x + mpmath.mpf("0.044715") * x**3)))


def mish(x: Any) -> Any:
    return x * mpmath.tanh(mpmath.log1p(mpmath.exp(x)))


def quick_gelu(x: Any) -> Any:
    return x / (1 + mpmath.exp(-mpmath.mpf("1.702") * x))


EXACT: dict[str, tuple[str, dict[str, Any], Callable[[Any], Any]]] = {
    "gelu": ("gelu", {}, gelu),
    "gelu, tanh": ("gelu", {"approximate": "tanh"}, gelu_tanh),
    "mish": ("mish", {}, mish),
    "quick gelu": ("quick_gelu", {}, quick_gelu),
}


@pytest.mark.parametrize("name", EXACT)
def test_fifty_digits(name: str) -> None:
    """400 digits inside: 1 + tanh cancels all of fifty at -12.5."""
    module, options, exact = EXACT[name]
    found = load_golden(module)(torch.tensor(POINTS, dtype=torch.float64), **options)
    with mpmath.workdps(400):
        for point, value in zip(POINTS, found.tolist()):
            expected = exact(mpmath.mpf(point))
            assert abs(mpmath.mpf(value) - expected) <= RELATIVE * abs(expected) + mpmath.mpf("1e-300"), point


def test_softmax_and_cross_entropy_to_fifty_digits() -> None:
    x = torch.tensor([[700.0, -700.0, 3.0, 699.5]], dtype=torch.float64)
    with mpmath.workdps(50):
        powers = [mpmath.exp(mpmath.mpf(value)) for value in x[0].tolist()]
        total = mpmath.fsum(powers)
        weights, losses = load_golden("softmax")(x)[0].tolist(), load_golden("cross_entropy")(x, torch.tensor([3]))
        for weight, power in zip(weights, powers):
            assert abs(mpmath.mpf(weight) - power / total) <= RELATIVE * power / total + mpmath.mpf("1e-300")
        assert abs(mpmath.mpf(float(losses)) - mpmath.log(total / powers[3])) < mpmath.mpf("1e-12")
