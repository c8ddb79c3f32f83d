"""Values that leave the simulated device inside a model and come back: found with their line and count."""

from __future__ import annotations

import inspect

import pytest
import torch
from torch import nn

from precision_align.core.records import RunInfo
from precision_align.recording.session import capture
from precision_align.storage.memory import MemorySink

pytestmark = pytest.mark.live


class Hopping(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        y = self.layer(x)
        y = (y.cpu().t() * 2).exp().to("npu")
        table = torch.arange(4.0).sqrt().to("npu")  # made on the CPU, not taken from the device
        return y + table, y.sum().item()


class Staying(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        return self.layer(x) + torch.arange(4.0).sqrt().to("npu"), x.cpu().shape


def record(model, steps=2, sources=("modules", "operators")):
    sink = MemorySink(RunInfo(run="test", created="", rank=0, world=1, device="cpu"))
    with capture(model, None, sink=sink, sources=sources) as recorder:
        for _ in range(steps):
            with recorder.step():
                y, _ = model(torch.ones(4, 4, device="npu"))
                y.sum().cpu().exp()  # outside of the model: logging
    return sink.dump()


def test_hops_are_counted_by_operator_and_line(npu):
    dump = record(Hopping().to("npu"))
    lines, start = inspect.getsourcelines(Hopping.forward)
    line = f"{__file__}:{start + next(n for n, text in enumerate(lines) if 'cpu' in text)}"
    hops = [note for note in dump.notes if note.startswith("device hop")]
    assert hops == [
        f"device hop: aten.{name} ran on the CPU on values taken from npu:0 at {line} (2 times)"
        for name in ("mul.Tensor", "exp.default")
    ]
    assert dump.info.capture["findings"] == [
        {"kind": "device hop", "operator": f"aten.{name}", "change": "npu:0", "source": line, "count": 2}
        for name in ("mul.Tensor", "exp.default")
    ]


def test_models_that_stay_on_their_device_have_none(npu):
    dump = record(Staying().to("npu"))
    assert not [note for note in dump.notes if "hop" in note]
    assert "findings" not in dump.info.capture


def test_a_model_on_the_cpu_has_none(npu):
    model = nn.Sequential(nn.Linear(4, 4))
    sink = MemorySink(RunInfo(run="test", created="", rank=0, world=1, device="cpu"))
    with capture(model, None, sink=sink, sources=("operators",)) as recorder, recorder.step():
        model(torch.ones(1, 4)).cpu().exp()
    assert "findings" not in sink.dump().info.capture
