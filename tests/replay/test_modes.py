"""Arithmetic modes are recognised by trying them: each is named for what it is, and faults are not taken for one."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from precision_align.devices.arithmetic import emulate
from precision_align.devices.profiles import load_profile
from precision_align.recording.session import capture
from precision_align.storage.memory import MemorySink
from precision_align.workflows.comparing import compare

pytestmark = pytest.mark.live
torch.set_num_threads(1)
PLAIN = load_profile("none")


class Mixer(nn.Module):
    """Its own products and an intermediate result that 16 bits may not hold."""

    def __init__(self, growth=1.0):
        super().__init__()
        torch.manual_seed(0)
        self.weight, self.bias, self.growth = (
            nn.Parameter(torch.randn(512, 24) / 8),
            nn.Parameter(torch.ones(24)),
            growth,
        )

    def forward(self, x):
        return torch.addmm(self.bias, x, self.weight) * self.growth / self.growth


class Autocast(Mixer):
    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return super().forward(x).float()


class Loud(Mixer):
    def forward(self, x):
        return super().forward(x) * 1.02


class Backwards(Mixer):
    """The same sum in another order."""

    def forward(self, x):
        return torch.addmm(self.bias, x.flip(1), self.weight.flip(0)) * self.growth / self.growth


def make(kind, dtype, growth=1.0):
    return nn.Sequential(nn.Identity(), kind(growth)).to(dtype)


def record(model, profile=PLAIN, backward=True):
    sink, dtype = MemorySink(), model[1].weight.dtype
    inputs = torch.randn(32, 512, generator=torch.Generator().manual_seed(1)).to(dtype)
    with capture(model, None, sink=sink) as recorder, recorder.step(), emulate(profile):
        out = model(inputs)
        if backward:
            out.float().square().mean().backward()
    return sink.dump()


def needs_half(dtype):
    """The oldest torch has no float16 products on the CPU."""
    if dtype == torch.float16 and torch.__version__ < "2.2":
        pytest.skip("no float16 products on the CPU before torch 2.2")


def judge(dtype, kind=Mixer, growth=1.0, **profile):
    reference = record(make(Mixer, dtype, growth), backward=growth == 1)
    candidate = record(make(kind, dtype, growth), replace(PLAIN, name="test", **profile), backward=growth == 1)
    return compare(reference, candidate, replay=lambda: make(Mixer, dtype, growth))


MODES = {
    "HF32": (torch.float32, {"matmul_inputs": "hf32"}, "HF32: inputs of products"),
    "bfloat16 sums": (
        torch.bfloat16,
        {"k_block": 16, "accumulator": "output"},
        "sums of products held in bfloat16, rounded after every 16 terms",
    ),
    "float16 sums": (
        torch.float16,
        {"k_block": 16, "accumulator": "output"},
        "sums of products held in float16, rounded after every 16 terms",
    ),
    "autocast": (torch.float32, {"kind": Autocast}, "autocast: computed in bfloat16"),
    "saturation inside": (
        torch.float16,
        {"growth": 30000.0, "overflow": "saturate"},
        "saturation: the largest finite value where an intermediate result overflows",
    ),
}


@pytest.mark.parametrize("name", MODES)
def test_a_mode_is_named(name):
    dtype, quirks, text = MODES[name]
    needs_half(dtype)
    report = judge(dtype, **quirks)
    assert (report.first.scope, report.first.phase, report.first.kind) == ("1", "forward", "mode"), report.first
    assert text in report.first.evidence
    found = report.first.metrics
    assert found["mode_residual"] < 0.1
    assert found.get("mode_second", 1.0) > 2 * found["mode_residual"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_fault_is_no_mode_and_another_order_is_nothing(dtype):
    report = judge(dtype, kind=Loud)
    assert (report.first.scope, report.first.kind) == ("1", "origin")
    assert judge(dtype, kind=Backwards).verdict == "aligned"


def test_a_declared_mode_is_no_divergence(tmp_path):
    from precision_align.comparison.rules import load_rules

    rules = tmp_path / "rules.toml"
    rules.write_text('[modes]\ndeclared = ["autocast"]\n', "utf-8")
    sides = record(make(Mixer, torch.float32), backward=False), record(make(Autocast, torch.float32), backward=False)
    found = compare(*sides, replay=lambda: make(Mixer, torch.float32), rules=load_rules(rules))
    assert found.verdict == "aligned"
