"""Code that turns rounding into large differences: innocent, in float32 and in bfloat16; found where it is at fault."""

from __future__ import annotations

from collections.abc import Callable

import torch
from localization_cases import Pair, case
from torch import nn
from torch.nn import functional

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


class Mix(nn.Linear):
    """Weighted means, all near one. The candidate sums in other pieces: eight in float32, two in bfloat16, where each
    partial sum is rounded.
    """

    other = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.other:
            return functional.linear(x, self.weight)
        pieces = 8 if x.dtype == torch.float32 else 2
        parts = [a @ b.t() for a, b in zip(x.flip(-1).chunk(pieces, -1), self.weight.flip(-1).chunk(pieces, -1))]
        return torch.stack(parts).sum(0)


class Tail(nn.Module):
    """The amplifier; ``wrong``: at fault."""

    def __init__(self, code: Callable[[torch.Tensor, bool], torch.Tensor], wrong: bool) -> None:
        super().__init__()
        self.code, self.wrong = code, wrong

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.code(x, self.wrong)


def normalise_layer(x: torch.Tensor, wrong: bool) -> torch.Tensor:
    """Nearly constant rows: their deviation is rounding for the most part."""
    return functional.layer_norm(x, x.shape[-1:], eps=1e-7 if wrong else 1e-12)


def sharpen(x: torch.Tensor, wrong: bool) -> torch.Tensor:
    """Huge logits: a rounding of one of them decides which is the largest."""
    return (x * (1.01e4 if wrong else 1e4)).softmax(-1)


def normalise_vector(x: torch.Tensor, wrong: bool) -> torch.Tensor:
    """Vectors that are what is left of a difference of equals."""
    return functional.normalize(x - 1, dim=-1, eps=1e-2 if wrong else 1e-30)


def divide(x: torch.Tensor, wrong: bool) -> torch.Tensor:
    """One over small numbers."""
    return 1 / (x - 1 + (1e-3 if wrong else 1e-6))


TAILS = {"layer_norm": normalise_layer, "softmax": sharpen, "tiny_vector": normalise_vector, "division": divide}
# How far the mixed values lie apart: some roundings of the dtype.
SPREADS = {"fp32": 1e-3, "bf16": 0.1}


def _register(name: str, dtype: str, at_fault: bool, phase: str) -> None:
    def build(faulty: bool) -> Pair:
        torch.manual_seed(7)
        model = nn.Sequential(Mix(64, 16, bias=False), Tail(TAILS[name], at_fault and faulty), nn.Linear(16, 2))
        model[0].other, spread = faulty, SPREADS[dtype]
        with torch.no_grad():
            model[0].weight.copy_((1 + spread * torch.randn(16, 64)) / 64)
        return model.to(DTYPES[dtype]), ((1 + spread * torch.randn(40, 64)).to(DTYPES[dtype]),)

    build.__name__ = f"{name}_{dtype}_{'at_fault' if at_fault else phase}"
    case("1" if at_fault else None, "amplifiers: numerics.md 4.3, PaddleCustomDevice#555", phase=phase)(build)


for _name in TAILS:
    for _dtype in DTYPES:
        _register(_name, _dtype, False, "forward")
        _register(_name, _dtype, False, "backward")
    _register(_name, "fp32", True, "forward")
