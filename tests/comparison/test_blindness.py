"""Each class of faults that inputs can hide is named with its stimulus, and not where the inputs show it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import precision_align as pa
from precision_align.alignment.side import Side
from precision_align.comparison.blindness import describe_blindness
from precision_align.storage.memory import MemorySink


class Rotary(nn.Module):
    def forward(self, x):
        return x * torch.arange(x.shape[1], dtype=x.dtype)[:, None]


class Gate(nn.Module):
    """Routes each token to the two experts with the largest scores."""

    def __init__(self, scores=None):
        super().__init__()
        self.scores = scores

    def forward(self, x):
        scores = x[..., :8] if self.scores is None else self.scores.expand(*x.shape[:-1], 8).clone()
        return scores, scores.topk(2).indices


class Net(nn.Module):
    def __init__(self, gate=None, rate=0.1, plain=True):
        super().__init__()
        self.rotary, self.norm, self.drop, self.gate = Rotary(), nn.LayerNorm(32), nn.Dropout(rate), gate
        if not plain:
            nn.init.normal_(self.norm.weight)
            nn.init.normal_(self.norm.bias)

    def forward(self, x, attention_mask=None):
        y = self.drop(self.norm(self.rotary(x)))
        return y if self.gate is None else self.gate(y)


def draw(*shape, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0)).to(dtype)


def describe(model, x, train=True, **more):
    sink = MemorySink()
    model.train(train).to(x.dtype)
    with pa.capture(model, None, sink=sink) as recorder, recorder.step():
        model(x, **more)
    return " | ".join(describe_blindness(Side(sink.dump())))


SEEN = {"x": draw(3, 37, 32), "attention_mask": torch.arange(37).expand(3, 37) < torch.tensor([[37], [20], [5]])}
TIED = torch.tensor([1.0, 0.5, 0.5, 0.1, 0.1, 0.1, 0.1, 0.1])

CASES = {
    "mixed up": ({}, {**SEEN, "x": draw(1, 37, 32), "attention_mask": SEEN["attention_mask"][1:2]}),
    "tail tiles": ({}, {"x": draw(3, 48, 32), "attention_mask": torch.arange(48).expand(3, 48) < 20}),
    "masks and padding": ({}, {**SEEN, "attention_mask": torch.ones(3, 37, dtype=torch.bool)}),
    "dropout": ({"rate": 0.0}, SEEN),
    "wrong places": ({}, {**SEEN, "x": torch.ones(3, 37, 32)}),
    "tie-breaking": ({"gate": Gate(torch.arange(8.0))}, SEEN),
    "not applied": ({"plain": True}, SEEN),
}


@pytest.mark.parametrize("what", CASES)
def test_what_the_inputs_hide_is_named_and_nothing_else(what):
    model, inputs = CASES[what]
    text = describe(Net(**{"plain": False, **model}), **inputs)
    assert [name for name in CASES if name in text] == [what]
    assert text.count("would show it") == 1


def test_inputs_that_show_all_are_not_complained_about():
    assert describe(Net(Gate(TIED), plain=False), **SEEN) == ""


def test_dropout_in_evaluation_mode_is_not_exercised():
    assert "dropout" in describe(Net(plain=False), train=False, **SEEN)


@pytest.mark.parametrize(
    ("dtype", "length", "hides"),
    [
        (torch.bfloat16, 37, True),
        (torch.bfloat16, 300, False),
        (torch.float16, 300, True),
        (torch.float32, 37, False),
    ],
)
def test_positions_that_the_dtype_holds_exactly(dtype, length, hides):
    text = describe(Net(plain=False), draw(2, length, 32, dtype=dtype))
    assert ("rotary positions" in text) == hides
    assert not hides or ("positions above 256" in text) == (dtype == torch.bfloat16)
