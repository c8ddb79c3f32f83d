"""Attention and products inside a module's own code, replayed for sampled rows only."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.nn import functional

from precision_align.core.terms import Phase, Role, Status
from precision_align.replay import rowsampling

BATCH, LENGTH, HEADS, WIDTH = 2, 192, 4, 16
BENIGN = (Status.PASS, Status.WARN)


@pytest.fixture(autouse=True)
def small_threshold(monkeypatch):
    monkeypatch.setattr(rowsampling, "SAMPLED_ABOVE", 1 << 18)
    monkeypatch.setattr(rowsampling, "LARGE_VALUES", 1 << 10)


class Attention(nn.Module):
    """``change``: what a faulty build makes of the heads' results; ``mode``: which code computes them."""

    def __init__(self, mode="fused", change=None):
        super().__init__()
        torch.manual_seed(0)
        size = HEADS * WIDTH
        self.q, self.k, self.v, self.o = (nn.Linear(size, size) for _ in range(4))
        self.mode, self.change = mode, change

    def attend(self, q, k, v):
        if self.mode == "fused":
            return functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        mask = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()
        if self.mode == "masked":
            return functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        scores = (q @ k.transpose(-1, -2)) / math.sqrt(WIDTH)
        return torch.matmul(scores.masked_fill(~mask, -math.inf).softmax(-1), v)

    def forward(self, x):
        q, k, v = (layer(x).view(BATCH, LENGTH, HEADS, WIDTH).transpose(1, 2) for layer in (self.q, self.k, self.v))
        y = self.attend(q, k, v)
        y = y if self.change is None else self.change(y, q, k, v)
        y = y.transpose(1, 2).reshape(BATCH, LENGTH, -1)
        return self.o(y + y.mean(1, keepdim=True) if self.mode == "mixed" else y)


class Net(nn.Module):
    def __init__(self, *args):
        super().__init__()
        self.attention = Attention(*args)

    def forward(self, x):
        return self.attention(x)


def draw(dtype=torch.float32):
    return torch.randn(BATCH, LENGTH, HEADS * WIDTH, generator=torch.Generator().manual_seed(1)).to(dtype)


def find(judge, reference, candidate, dtype=torch.float32):
    rows = judge(candidate.to(dtype), lambda model: model(draw(dtype)), replay=reference.to(dtype))
    (row,) = [r for r in rows if r.scope == "attention" and r.role == Role.INPUT and r.key.split("/")[4].endswith(".o")]
    assert row.phase == Phase.FORWARD
    return row


def in_another_order(y, q, k, v):
    """Another build of the same attention: float64 inside, rounded once."""
    q, k, v = (part.double() for part in (q, k, v))
    return functional.scaled_dot_product_attention(q, k, v, is_causal=True).to(y.dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("mode", ["fused", "masked", "eager"])
def test_a_conforming_build_passes_by_a_sample_of_rows(judge, mode, dtype):
    row = find(judge, Net(mode), Net(mode, in_another_order), dtype)
    assert row.status in BENIGN, row
    assert row.evidence == "sampled"
    assert 0.4 < row.metrics["sample_miss"] < 0.9
    assert "rows; one wrong value in another row is missed with" in row.note


def spoil(places, factor):
    def change(y, q, k, v):
        wrong = y.clone()
        wrong[places] = wrong[places] * factor
        return wrong

    return change


FAULTS = {
    "scale": spoil(..., 1.01),
    "head": spoil((slice(None), 2), 1.05),
    "tail": spoil((slice(None), slice(None), slice(-3, None)), 1.2),
    "first": spoil((slice(None), slice(None), slice(0, 1)), 1.2),
    "features": spoil((..., 5), 1.1),
    "NaN": spoil((0, 1, 100, 3), math.nan),
    "not causal": lambda y, q, k, v: functional.scaled_dot_product_attention(q, k, v),
}


@pytest.mark.parametrize(("mode", "fault"), [*(("fused", fault) for fault in FAULTS), ("eager", "tail")])
def test_faults_are_found(judge, mode, fault):
    row = find(judge, Net(mode), Net(mode, FAULTS[fault]))
    assert row.status == Status.FAIL
    assert row.evidence == ("replay" if fault == "NaN" else "sampled")


def test_the_worst_place_is_one_of_the_whole_tensor(judge):
    row = find(judge, Net("fused"), Net("fused", spoil((1, 2, LENGTH - 1, 3), 3.0)))
    assert row.status == Status.FAIL
    assert int(row.metrics["worst_index"]) == (LENGTH * 2 - 1) * HEADS * WIDTH + 2 * WIDTH + 3


def test_code_that_mixes_rows_is_replayed_whole(judge):
    assert find(judge, Net("mixed"), Net("mixed")).evidence == "replay"
    row = find(judge, Net("mixed"), Net("mixed", spoil((0, 0, 77, 0), 2.0)))
    assert (row.status, row.evidence) == (Status.FAIL, "replay")


def test_small_attention_is_replayed_whole(judge, monkeypatch):
    monkeypatch.setattr(rowsampling, "SAMPLED_ABOVE", 1 << 31)
    assert find(judge, Net("fused"), Net("fused", in_another_order)).evidence == "replay"
