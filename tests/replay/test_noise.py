"""Gradients that cancel inside a fused operator: rounding noise there is no fault, and hides none."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.nn import functional

from precision_align.core.terms import Phase, Site, Status


class Attention(nn.Module):
    """Causal attention; ``gain``: of the scores of the composed form, None = the fused operator.

    The first query sees one key: its gradient is zero, computed as the difference of two rounded sums.
    """

    def __init__(self, gain=None):
        super().__init__()
        self.gain = gain

    def forward(self, query, key, value):
        if self.gain is None:
            return functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        scores = query @ key.mT * (self.gain / math.sqrt(query.shape[-1]))
        later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        scores = scores.masked_fill(later, -math.inf)
        powers = torch.exp(scores - scores.detach().amax(-1, keepdim=True))
        return powers / powers.sum(-1, keepdim=True) @ value


class PairNorm(nn.Module):
    """Group norm over pairs, whose results are 1 and -1 whatever goes in: all gradients are almost zero."""

    def __init__(self, gain=None):
        super().__init__()
        self.gain = gain

    def forward(self, x):
        if self.gain is None:
            return functional.group_norm(x, 4)
        pairs = x.reshape(-1, 4, 2)
        mean = pairs.mean(-1, keepdim=True)
        variance = (pairs - mean).square().mean(-1, keepdim=True)
        return ((pairs - mean) * (self.gain / torch.sqrt(variance + 1e-5))).reshape(x.shape)


class Net(nn.Module):
    def __init__(self, operator, gain=None):
        super().__init__()
        self.operator = operator(gain)

    def forward(self, *inputs):
        return self.operator(*inputs) * 1.5


def draw(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


CASES = [(Attention, (draw(2, 3, 64, 24) * 8, draw(2, 3, 24, 64).mT, draw(6, 64, 24).view(2, 3, 64, 24)))]
CASES += [(PairNorm, (draw(64, 8),))]


@pytest.mark.parametrize(("operator", "inputs"), CASES)
def test_noise_of_cancelled_gradients_is_explained_and_a_wrong_gain_is_not(operator, inputs, judge):
    def step(module):
        result = module(*(tensor.clone().requires_grad_() for tensor in inputs))
        result.backward(draw(*result.shape))

    def judge_gradients(gain):
        rows = judge(Net(operator, gain), step, replay=Net(operator))
        found = [row for row in rows if (row.scope, row.phase) == ("operator", Phase.BACKWARD)]
        found = [row for row in found if row.site != Site.INPUTS]
        assert len(found) == len(inputs)
        return found

    for row in judge_gradients(1.0):
        assert (row.status, row.metrics["z"] <= 1) == (Status.PASS, True), row
    assert {row.status for row in judge_gradients(1.01)} == {Status.FAIL}
