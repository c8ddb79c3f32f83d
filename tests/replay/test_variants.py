"""Faults injected into code: each is named among the first three guesses, and no other fault is given that name."""

from __future__ import annotations

import functools
import math

import pytest
import torch
from torch import nn
from torch.nn import functional

import precision_align as pa

ROWS, WIDTH = 48, 16


class Code(nn.Module):
    """Runs one of two functions of itself and its input."""

    def __init__(self, code) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.code = code
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH) / 4)
        self.gain = nn.Parameter(torch.rand(WIDTH) + 0.5)

    def forward(self, x):
        return self.code(self, x)


def norm(eps=1e-6, correction=0, low=False):
    def code(module, x):
        y = x.bfloat16() if low else x
        variance = y.var(-1, correction=correction, keepdim=True).float()
        return x * torch.rsqrt(variance + eps) * module.gain

    return code


def rotate(interleaved=False):
    def code(module, x):
        angle = torch.arange(len(x))[:, None] / 10000 ** (torch.arange(WIDTH // 2) * 2 / WIDTH)
        c, s = angle.cos(), angle.sin()
        if interleaved:
            a, b = x[:, ::2], x[:, 1::2]
            return torch.stack((a * c - b * s, a * s + b * c), -1).flatten(-2)
        a, b = x[:, : WIDTH // 2], x[:, WIDTH // 2 :]
        return torch.cat((a * c - b * s, a * s + b * c), -1)

    return code


def attend(mask=lambda keep: ~keep, diagonal=0, columns=ROWS):
    def code(module, x):
        q, k = x @ module.weight, x[:columns]
        keep = torch.ones(ROWS, columns, dtype=torch.bool).tril(diagonal)
        keep[:, 0] = True
        return (q @ k.t() / math.sqrt(WIDTH)).masked_fill(mask(keep), -1e9).softmax(-1) @ k

    return code


def attend_fused(**more):
    def code(module, x):
        q, k = (x @ module.weight)[None, None, -24:], x[None, None]
        options = {name: value(24, ROWS) if callable(value) else value for name, value in more.items()}
        return functional.scaled_dot_product_attention(q, k, k, **options)[0, 0]

    return code


def bottom_right(rows, columns):
    return torch.ones(rows, columns, dtype=torch.bool).tril(columns - rows)


def comb(rows, columns):
    return (torch.arange(rows)[:, None] + torch.arange(columns)).remainder(3) > 0


def linear(change=lambda weight: weight):
    """The candidate's own weight is not what it is recorded with."""
    return lambda module, x: functional.linear(x, change(module.weight))


def regroup(weight, scale=1.0, zero=0.0):
    """Dequantised in groups of 8 columns, each with its own scale."""
    groups = weight.view(WIDTH, -1, 8)
    size = groups.abs().amax(-1, keepdim=True) / 7
    return (
        ((groups / size).round() + zero).view(WIDTH, WIDTH) * size.repeat_interleave(8, -1).view(WIDTH, WIDTH) * scale
    )


def vary(weight):
    scales = 1 + torch.arange(2 * WIDTH).reshape(WIDTH, 2).remainder(5) / 10
    return regroup(weight, scale=scales.repeat_interleave(8, -1))


def tokens(how):
    def code(module, x):
        losses, valid = (x @ module.weight).square(), x > -0.5
        losses = losses * valid
        return how(losses, valid)

    return code


def share(losses, valid):
    return losses.sum() / valid.sum()


ORDER = torch.randperm(ROWS, generator=torch.Generator().manual_seed(3))
RIGHT_NORM, RIGHT_LINEAR = norm(), linear()
FAULTS = {
    "scaled": (RIGHT_LINEAR, lambda m, x: RIGHT_LINEAR(m, x) * 1.01, "1.01"),
    "shifted": (RIGHT_LINEAR, lambda m, x: RIGHT_LINEAR(m, x) + 0.5, "0.5"),
    "sign": (RIGHT_LINEAR, lambda m, x: -RIGHT_LINEAR(m, x), "inverted"),
    "permuted": (RIGHT_LINEAR, lambda m, x: RIGHT_LINEAR(m, x)[ORDER], ", ".join(map(str, ORDER[:3].tolist()))),
    "clamped": (RIGHT_LINEAR, lambda m, x: RIGHT_LINEAR(m, x).clamp(-0.7, 0.7), "[-0.7, 0.7]"),
    "dropout": (RIGHT_LINEAR, lambda m, x: functional.dropout(RIGHT_LINEAR(m, x), 0.2), "dropout is on"),
    "transposed": (lambda m, x: x @ m.weight, lambda m, x: x @ m.weight.t(), "factor is transposed"),
    "interleaved": (rotate(), rotate(True), "pair"),
    "lower type inside": (RIGHT_NORM, norm(low=True), "bfloat16 inside: `var"),
    "eps": (RIGHT_NORM, norm(eps=3e-4), "eps 0.0003"),
    "variance": (RIGHT_NORM, norm(correction=1), "biased"),
    "gelu form": (
        lambda m, x: functional.gelu(x @ m.weight),
        lambda m, x: functional.gelu(x @ m.weight, approximate="tanh"),
        "tanh",
    ),
    "mask inverted": (attend(), attend(mask=lambda keep: keep), "inverted"),
    "mask off by one": (attend(), attend(diagonal=1), "diagonal 1"),
    "mask dropped": (attend(), attend(mask=torch.zeros_like), "left out"),
    "mask alignment": (attend(diagonal=0, columns=24), attend(diagonal=-24, columns=24), "corner"),
    "mean of means": (tokens(share), tokens(lambda a, b: (a.sum(1) / b.sum(1)).mean()), "all count alike"),
    "count": (tokens(share), tokens(lambda a, b: a.sum() / a.numel()), "counted"),
    "left out": (lambda m, x: x + torch.tanh(x @ m.weight), lambda m, x: torch.tanh(x @ m.weight), "term of `add`"),
    "sign of": (
        lambda m, x: torch.relu(x) - torch.tanh(x @ m.weight),
        lambda m, x: torch.relu(x) + torch.tanh(x @ m.weight),
        "inverted",
    ),
    "constant": (
        lambda m, x: torch.tanh(x @ m.weight * 0.25) + x,
        lambda m, x: torch.tanh(x @ m.weight * 0.21) + x,
        "0.21 instead of 0.25",
    ),
    "scaled inside": (
        lambda m, x: (x @ m.weight).softmax(-1),
        lambda m, x: (x @ m.weight * 1.1).softmax(-1),
        "1.1 times",
    ),
    "activation": (lambda m, x: functional.silu(x @ m.weight), lambda m, x: functional.relu(x @ m.weight), "relu"),
}
# (name, fault) where the name is right, too: what it says comes to the same there.
SAME_EFFECT = {("scaled", "variance"), ("scaled inside", "constant")}
# What happened to a weight, all under one name: told apart by their texts.
WEIGHTS = {
    "stale": (
        RIGHT_LINEAR,
        linear(lambda w: w + torch.randn(w.shape, generator=torch.Generator().manual_seed(1))),
        "stale",
    ),
    "row order": (RIGHT_LINEAR, linear(lambda w: w[:, torch.roll(torch.arange(WIDTH), 3)]), "columns stand in another"),
    "tail": (RIGHT_LINEAR, linear(lambda w: torch.cat((w[:, :12], 0 * w[:, 12:]), 1)), "last 4 of its 16 columns"),
    "scales": (linear(regroup), linear(vary), "other scales"),
    "zero point": (linear(regroup), linear(lambda w: regroup(w, zero=1.0)), "zero point"),
}
# The fused operator.
FUSED = {
    "dropped": (attend_fused(is_causal=True), attend_fused(), "mask dropped"),
    "corner": (attend_fused(is_causal=True), attend_fused(attn_mask=bottom_right), "mask alignment"),
    "inverted": (
        attend_fused(attn_mask=comb),
        attend_fused(attn_mask=lambda rows, columns: ~comb(rows, columns)),
        "mask inverted",
    ),
}


def draw(rows: int = ROWS) -> torch.Tensor:
    """Rows of very different size: the small ones show an eps."""
    torch.manual_seed(1)
    return torch.randn(rows, WIDTH) * torch.logspace(-2, 0.3, rows)[:, None]


@functools.cache
def explain(right, wrong, dtype=torch.float32):
    """The first three explanations of what ``wrong`` gives where ``right`` belongs."""
    reference, candidate = (nn.Sequential(Code(code), nn.Tanh()).to(dtype) for code in (right, wrong))
    first = pa.lockstep(reference, candidate, draw().to(dtype)).first
    assert first is not None
    assert (first.scope, first.phase) == ("0", "forward")
    return first.explanations[:3]


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_in_the_code_is_named(name):
    right, wrong, text = FAULTS[name]
    found = explain(right, wrong)
    assert any(item.name == name and text in item.text and item.residual < 0.02 for item in found), found


@pytest.mark.parametrize("name", FAULTS)
def test_other_faults_are_not_given_that_name(name):
    for other, (right, wrong, _) in FAULTS.items():
        if other != name and (name, other) not in SAME_EFFECT:
            assert name not in [item.name for item in explain(right, wrong) if item.residual < 0.02], other


@pytest.mark.parametrize("name", WEIGHTS)
def test_what_happened_to_a_weight_is_named_and_nothing_else(name):
    right, wrong, text = WEIGHTS[name]
    found = explain(right, wrong)
    assert any(item.name.startswith("weight") and text in item.text for item in found), found
    for other, (right, wrong, _) in WEIGHTS.items():
        if other != name:
            assert not any(text in item.text for item in explain(right, wrong)), other


@pytest.mark.parametrize("name", FUSED)
def test_the_mask_of_fused_attention_is_named(name):
    right, wrong, expected = FUSED[name]
    found = explain(right, wrong)
    assert found[0].name == expected, found


@pytest.mark.parametrize("name", ["activation", "eps", "interleaved", "mask off by one"])
def test_sixteen_bits_hide_no_cause(name):
    right, wrong, _ = FAULTS[name]
    assert any(item.name == name for item in explain(right, wrong, torch.bfloat16))


def test_code_that_shares_nothing_with_the_reference_is_unexplained():
    assert explain(lambda m, x: torch.tanh(x @ m.weight), lambda m, x: torch.sin(7 * x @ m.weight).cumsum(0)) == ()


def test_a_tensor_taken_for_another_is_named():
    class Gated(nn.Module):
        def __init__(self, swapped: bool) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.gate, self.up, self.act = nn.Linear(WIDTH, 8), nn.Linear(WIDTH, 8), nn.SiLU()
            self.swapped = swapped

        def forward(self, x):
            gate, up = self.gate(x), self.up(x)
            return self.act(up) * gate if self.swapped else self.act(gate) * up

    first = pa.lockstep(Gated(False), Gated(True), draw()).first
    assert first is not None
    assert first.explanations[0].name == "another tensor"
    assert "the output of up" in first.explanations[0].text
