"""Attention of the simulated device reads strides, masks and head groups as the CPU's does, to the last bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional

pytestmark = [pytest.mark.live, pytest.mark.usefixtures("npu")]

SHAPE = (2, 4, 9, 16)
LAYOUTS = {
    "contiguous": lambda base: base(*SHAPE),
    "heads after tokens": lambda base: base(2, 9, 4, 16).transpose(1, 2),
    "size first": lambda base: base(16, 2, 4, 9).permute(1, 2, 3, 0),
    "every other": lambda base: base(4, 8, 18, 32)[::2, ::2, ::2, ::2],
    "inside another": lambda base: base(3, 6, 12, 20)[1:, 2:, 3:, 4:],
    "one for all heads": lambda base: base(2, 1, 9, 16).expand(SHAPE),
}
MASKS: dict[str, dict[str, Any]] = {
    "none": {},
    "causal": {"is_causal": True},
    "a row that sees nothing": {"attn_mask": torch.arange(9)[:, None] > torch.arange(9)},
    "added, broadcast": {"attn_mask": torch.linspace(-3, 3, 9).expand(2, 1, 9, 9)},
}


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_attention_of_any_strides(layout: str, mask: str) -> None:
    def run(kind: str) -> list[torch.Tensor]:
        generator = torch.Generator().manual_seed(0)
        bases: list[torch.Tensor] = []

        def base(*shape: int) -> torch.Tensor:
            bases.append(torch.randn(*shape, generator=generator).to(kind).requires_grad_())
            return bases[-1]

        inputs = [LAYOUTS[layout](base) for _ in range(3)]
        options = {key: value.to(kind) if key == "attn_mask" else value for key, value in MASKS[mask].items()}
        result = functional.scaled_dot_product_attention(*inputs, **options)
        return [result.detach(), *torch.autograd.grad(result.square().sum(), bases)]

    for expected, actual in zip(run("cpu"), run("npu")):
        assert actual.device.type == "npu"
        assert torch.equal(actual.cpu(), expected)
