"""Decisions, NaN and Inf in a replayed call."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from precision_align.core.terms import Kind, Site, Status, Verdict

G = torch.Generator().manual_seed(0)
SCORES = torch.randn(64, 16, generator=G)


class Choose(nn.Module):
    """``wrong``: rows whose choice the candidate gets wrong; ``how``: the decision."""

    def __init__(self, how="argmax", wrong=()):
        super().__init__()
        self.how, self.wrong = how, list(wrong)

    def forward(self, x):
        if self.how == "argmax":
            chosen = x.argmax(-1)
        elif self.how == "topk":
            chosen = x.topk(2, -1).indices
        elif self.how == "greater":
            chosen = x > 0.1
        else:
            chosen = x.round().long()
        if self.wrong:
            chosen = chosen.clone()
            chosen[self.wrong] = ~chosen[self.wrong] if chosen.dtype == torch.bool else chosen[self.wrong] - 1
        return chosen


HOWS = ["argmax", "topk", "greater", "round"]


@pytest.mark.parametrize("how", HOWS)
def test_equal_decisions_pass(judge, how):
    rows = judge(Choose(how), lambda m: m(SCORES), replay=Choose(how))
    assert [row.status for row in rows if row.role == "output"] == [Status.PASS]


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("row", [0, 63])
def test_a_clear_decision_that_differs_fails(judge, how, row):
    rows = judge(Choose(how, [row]), lambda m: m(SCORES), replay=Choose(how))
    assert [found.status for found in rows if found.role == "output"] == [Status.FAIL]


def tie(row):
    """Scores in which one row's two best are equal but for the last digit."""
    scores = SCORES.clone()
    scores[row] = -3.0
    scores[row, 4], scores[row, 5] = 1.0, 1.0 + 1e-7
    return scores


def test_a_near_tie_warns(judge):
    rows = judge(Choose("argmax", [7]), lambda m: m(tie(7)), replay=Choose("argmax"))  # 4 instead of 5
    (found,) = [row for row in rows if row.role == "output"]
    assert (found.status, "near-ties" in found.note) == (Status.WARN, True)


def test_a_near_tie_does_not_excuse_another_row(judge):
    rows = judge(Choose("argmax", [7, 8]), lambda m: m(tie(7)), replay=Choose("argmax"))
    assert [row.status for row in rows if row.role == "output"] == [Status.FAIL]


class Spoil(nn.Module):
    """Squares; ``value`` replaces one element of the candidate's result."""

    def __init__(self, value=None, saturate=False):
        super().__init__()
        self.value, self.saturate = value, saturate

    def forward(self, x):
        y = x * x
        if self.value is not None:
            y = y.clone()
            y[3, 3] = self.value
        return y.clamp(-65504, 65504) if self.saturate else y


@pytest.mark.parametrize("value", [math.nan, math.inf, 1e6])
def test_a_value_that_the_reference_does_not_make(compare, value):
    found = compare(Spoil(), Spoil(value), lambda m: m(SCORES))
    assert (found.verdict, found.first.scope, found.first.site) == (Verdict.DIVERGED, "", Site.MODULE)


def test_saturated_overflow_is_a_mode(compare):
    x = (SCORES * 300).half()
    assert torch.isinf(x * x).any()
    found = compare(Spoil(), Spoil(saturate=True), lambda m: m(x))
    assert (found.first.kind, "saturation" in found.first.evidence) == (Kind.MODE, True)


def test_nan_that_came_in_is_inconclusive_where_it_comes_out_differently(judge):
    """A saturating unit turns NaN into 0: not the fault of the call that is fed NaN."""

    class Clean(nn.Module):
        def __init__(self, clean):
            super().__init__()
            self.clean = clean

        def forward(self, x):
            return torch.nan_to_num(x * 2) if self.clean else x * 2

    x = SCORES.clone()
    x[5, 5] = math.nan
    rows = judge(Clean(True), lambda m: m(x), replay=Clean(False))
    assert [row.status for row in rows if row.role == "output"] == [Status.INCONCLUSIVE]
    rows = judge(Clean(False), lambda m: m(x), replay=Clean(False))
    assert [row.status for row in rows if row.role == "output"] == [Status.PASS]


def test_a_mask_of_minus_infinity_is_no_obstacle(judge):
    class Masked(nn.Module):
        def __init__(self, gain=1.0):
            super().__init__()
            self.gain = gain

        def forward(self, scores, mask):
            return torch.softmax(scores * self.gain + mask, -1)

    mask = torch.full((16, 16), -math.inf).triu(1)
    scores = SCORES[:16]
    for gain, status in ((1.0, Status.PASS), (1.01, Status.FAIL)):
        rows = judge(Masked(gain), lambda m: m(scores, mask), replay=Masked())
        assert [row.status for row in rows if row.role == "output"] == [status]


def store_near_ties_wrongly(exact, count=8):
    """float64 as bfloat16, the ``count`` values nearest to a tie rounded the other way: to the last few, any CPU's
    float32 sum is nearer than that, so that its store is another."""
    words = exact.float().view(torch.int32)
    low = words & 0xFFFF
    nearest = (low - 0x8000).abs().flatten().argsort()[:count]
    is_up = (low > 0x8000).flatten()
    is_up[nearest] ^= True
    return ((words - low) + (is_up.view(words.shape).int() << 16)).view(torch.float32).bfloat16()


def test_autocast_rounding_is_not_an_error_of_the_operator(judge):
    """Stores of 8 values in 4096 rounded the other way, in a product of rounded operands."""

    class Rounding(nn.Linear):
        def forward(self, x):
            if not torch.is_autocast_enabled("cpu"):
                return super().forward(x)
            with torch.autocast("cpu", enabled=False):
                operands = (tensor.bfloat16().double() for tensor in (x, self.weight, self.bias))
                return store_near_ties_wrongly(nn.functional.linear(*operands))

    torch.manual_seed(0)
    candidate, x = Rounding(4096, 64), torch.randn(64, 4096, generator=torch.Generator().manual_seed(0))
    reference = nn.Linear(4096, 64)
    reference.load_state_dict(candidate.state_dict())

    def run(module):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            module(x)

    (row,) = [row for row in judge(candidate, run, replay=reference) if row.role == "output"]
    assert row.status in (Status.PASS, Status.WARN)
    assert 0.1 < row.metrics["z"] <= 1.0  # the formula's bound, not one relaxed by the rounding of the operands
