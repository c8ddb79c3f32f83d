"""Dumps of sketches or statistics alone: what they show, what they do not, and that the report says so."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import precision_align as pa
from precision_align.comparison.engine import Engine
from precision_align.comparison.raw import RawComparer
from precision_align.core.keys import Key
from precision_align.core.records import RunInfo, TensorRecord
from precision_align.core.terms import Pass, Phase, Role, Source, Status, Tier, Verdict
from precision_align.divergence.locating import locate
from precision_align.storage.base import Draft
from precision_align.storage.memory import MemorySink

ROWS, COLUMNS = 200, 256


class Net(nn.Module):
    def __init__(self, change=None):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(COLUMNS, COLUMNS), nn.Linear(COLUMNS, COLUMNS)
        self.change = change or (lambda y: y)
        if change is not None:
            forward = self.first.forward
            self.first.forward = lambda x: change(forward(x))

    def forward(self, x):
        return self.second(torch.tanh(self.first(x)))


def record(model, payload, dtype):
    sink = MemorySink()
    x = torch.randn(ROWS, COLUMNS, generator=torch.Generator().manual_seed(1)).to(dtype)
    with pa.capture(model.to(dtype), None, sink=sink, payload=payload) as recorder, recorder.step():
        model(x)
    return sink.dump()


def compare(change, payload, dtype=torch.float32):
    return locate(Engine(record(Net(), payload, dtype), record(Net(change), payload, dtype)).run())


def permute(y):
    return y[:, torch.randperm(COLUMNS, generator=torch.Generator().manual_seed(2))]


def swap(y):
    return torch.cat([y[:, 1:2], y[:, :1], y[:, 2:]], 1)


def zero_part(y):
    return torch.cat([torch.cat([y[: ROWS // 2, :1] * 0, y[ROWS // 2 :, :1]]), y[:, 1:]], 1)


def noise(y):
    unit = torch.finfo(y.dtype).eps / 4
    return y * (1 + unit * torch.randn(y.shape, generator=torch.Generator().manual_seed(3))).to(y.dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("change", [permute, swap, zero_part, lambda y: y * 1.05])
def test_sketches_show_permuted_and_zeroed_columns(change, dtype):
    found = compare(change, "sketch", dtype)
    assert (found.first.scope, found.verdict) == ("first", Verdict.DIVERGED)


@pytest.mark.parametrize("payload", ["sketch", "statistics"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rounding_is_aligned_and_the_first_note_states_the_power(dtype, payload):
    found = compare(noise, payload, dtype)
    assert found.verdict == Verdict.ALIGNED
    assert f"passed by {payload} alone" in found.notes[0]
    weak = [row for row in found.records if row.evidence == payload]
    assert weak
    assert all(row.metrics["raw_power"] > 0 and payload in row.note for row in weak)


@pytest.mark.parametrize("change", [zero_part, lambda y: y * 1.05, lambda y: y + 0.05])
def test_statistics_show_zeros_factors_and_shifts(change):
    found = compare(change, "statistics")
    assert (found.first.scope, found.verdict) == ("first", Verdict.DIVERGED)


def test_statistics_do_not_show_a_permutation_of_one_output_and_say_so():
    found = compare(permute, "statistics")
    row = next(row for row in found.records if row.scope == "first" and row.role == Role.OUTPUT)
    assert (row.status, row.evidence) == (Status.PASS, "statistics")
    assert "values in the wrong places" in found.notes[0]


def keep(words, dtype, tier):
    key = Key(0, 0, 0, Source.MODULE, "a", 0, Pass.FIRST, "", 0, Phase.FORWARD, Role.OUTPUT, "")
    form = TensorRecord(key, dtype, words.shape, (words.shape[1], 1), "strided", "cpu", False, 0, tier)
    sink = MemorySink(RunInfo("r", "now", 0, 1, "cpu"))
    sink.put(Draft(form, words))
    return sink.dump()


def gap(actual, expected, dtype, tier=Tier.SKETCH):
    ours, theirs = keep(actual, dtype, tier), keep(expected, dtype, tier)
    return RawComparer(theirs, ours).gap(ours.records[0], theirs.records[0])


CODES = np.random.default_rng(0).integers(-127, 128, (300, 100)).astype(np.int8)


@pytest.mark.parametrize("place", [(slice(None), 7), (slice(0, 30), 7), (5, 7)])
def test_int8_columns_that_are_permuted_zeroed_or_off_by_one_code_show_in_sketches(place):
    zeroed, off, swapped = CODES.copy(), CODES.copy(), CODES.copy()
    zeroed[place], off[place] = 0, off[place] ^ 1
    swapped[:, [7, 8]] = swapped[:, [8, 7]]
    for wrong in (zeroed, off, swapped):
        found = gap(wrong, CODES, "int8")
        assert (found.known, found.close, found.how) == (True, False, "sketch")


@pytest.mark.parametrize("scale", [1.3, 0.5])
def test_the_stated_power_of_a_sketch_holds(scale):
    """Dense noise of 1.3 times the power is seen in 50 of 50 draws, half of it in none."""
    generator = np.random.default_rng(1)
    x = generator.standard_normal((ROWS, COLUMNS)).astype(np.float32)
    power = gap(np.nextafter(x, np.float32(9)), x, "float32").metrics["raw_power"]
    seen = 0
    for _ in range(50):
        e = generator.standard_normal(x.shape)
        e *= scale * power * np.linalg.norm(x) / np.linalg.norm(e)
        seen += not gap((x + e).astype(np.float32), x, "float32").close
    assert seen == (50 if scale > 1 else 0)


def test_flushed_subnormals_are_no_lost_values():
    x = np.random.default_rng(2).standard_normal((ROWS, COLUMNS)).astype(np.float16)
    x[:, :40] = np.float16(1e-6)
    flushed = np.where(np.abs(x) < 6e-5, np.float16(0), x)
    assert gap(flushed, x, "float16", Tier.STATISTICS).close
    lost = x.copy()
    lost[:, 100] = 0
    assert not gap(lost, x, "float16", Tier.STATISTICS).close
