"""Recording without payloads on the simulated device: what the host would find, in one copy a step."""

from __future__ import annotations

import warnings
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from precision_align.core.records import RunInfo
from precision_align.core.terms import Role, Tier
from precision_align.devices import backend, condensing
from precision_align.devices.simulated import set_profile
from precision_align.recording.session import capture
from precision_align.recording.summaries import Summaries
from precision_align.storage.memory import MemorySink

pytestmark = [pytest.mark.live, pytest.mark.usefixtures("npu", "small_ones_only")]


@pytest.fixture
def small_ones_only(monkeypatch):
    """Tensors of more than 64 KiB are summarized on the device."""
    monkeypatch.setattr("precision_align.recording.summaries.GATHERED_BYTES", 1 << 16)


class Net(nn.Module):
    """Buffers that change, small and large tensors (128 KiB of input), in-place writes."""

    def __init__(self):
        super().__init__()
        self.up, self.norm, self.down = nn.Linear(512, 256), nn.BatchNorm1d(256), nn.Linear(256, 4)
        self.register_buffer("scale", torch.full((1 << 15,), 0.5))

    def forward(self, x):
        h = torch.relu_(self.norm(self.up(x * 2)))
        x.mul_(0)
        return self.down(h) * self.scale[0]


def train(options=None):
    """(bits of outputs, gradients, weights and generator state; dump); ``options``: of a session, None without one."""
    torch.manual_seed(0)
    model = Net().to("npu")
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    sink = MemorySink(RunInfo(run="test", created="", rank=0, world=1, device="npu"))
    trace = []
    with nullcontext() if options is None else capture(model, None, sink=sink, **options) as recorder:
        for _ in range(2):
            with nullcontext() if recorder is None else recorder.step():
                output = model(torch.randn(64, 512).to("npu"))
                output.square().sum().backward()
                optimizer.step()
            left = [output, *(p.grad for p in model.parameters()), *model.state_dict().values()]
            trace += [one.detach().cpu().numpy().tobytes() for one in left]
            optimizer.zero_grad()
    trace.append(torch.get_rng_state().numpy().tobytes())
    return trace, sink.dump()


def without_counts(record):
    """But for statistics and for numbers of calls: the first run in a process makes its tables by some operators."""
    return replace(record, statistics=None, order=0, extra={k: v for k, v in record.extra.items() if k != "operator"})


def same_records(ours, host):
    assert {r.key for r in ours.records} == {r.key for r in host.records}
    for record in ours.records:
        other = host.get(record.key)
        assert without_counts(record) == without_counts(other)
        if other.statistics is not None:
            found, own = record.statistics, other.statistics
            assert (found.numel, found.nan, found.zero) == (own.numel, own.nan, own.zero)
            assert (found.minimum, found.maximum) == (own.minimum, own.maximum)
            assert found.l2 == pytest.approx(own.l2, rel=1e-12)
        if record.tier is Tier.SKETCH:
            assert np.allclose(ours.sketch(record.key), host.sketch(record.key), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("tier", ["fingerprint", "statistics", "sketch"])
def test_records_are_the_hosts(tier, monkeypatch):
    options = {"payload": tier, "sources": ("modules", "gradients", "parameters", "operators")}
    plain, _ = train()
    trace, ours = train(options)
    with monkeypatch.context() as patched:
        patched.setattr(Summaries, "take", lambda *arguments: None)
        _, host = train(options)
    same_records(ours, host)
    assert trace == plain
    large = [r for r in ours.records if r.nbytes > 1 << 16]
    assert len(large) > 4
    assert all(r.tier == tier and r.digest for r in large)
    paths = {r.key.path for r in ours.records if r.key.role is Role.BUFFER}
    assert "after.running_mean" in paths
    assert "after.scale" not in paths


def count_copies(monkeypatch, options):
    """Copies of device memory to the host in each of three steps."""
    counts = []
    copy = backend._copy_from

    def counted(source, target, non_blocking=False):
        counts[-1] += source.device.type == "npu" and target.device.type == "cpu"
        return copy(source, target, non_blocking)

    class Sink(MemorySink):
        def end_step(self, step):
            super().end_step(step)
            counts.append(0)

    torch.manual_seed(0)
    model = Net().to("npu")
    sink = Sink(RunInfo(run="test", created="", rank=0, world=1, device="npu"))
    with (
        torch.library._scoped_library("aten", "IMPL") as library,
        warnings.catch_warnings(),
        capture(model, None, sink=sink, **options) as recorder,
    ):
        warnings.simplefilter("ignore")  # torch tells that a kernel is replaced
        library.impl("_copy_from", counted, "PrivateUse1", allow_override=True)
        counts.append(0)
        for _ in range(3):
            x = torch.randn(64, 512).to("npu")
            with recorder.step():
                model(x).square().sum().backward()
    return counts[:3]


def test_one_copy_a_step(monkeypatch):
    options = {"payload": "sketch", "sources": ("modules", "gradients", "parameters")}
    assert count_copies(monkeypatch, options)[1:] == [1, 1]
    monkeypatch.setattr(Summaries, "take", lambda *arguments: None)
    assert min(count_copies(monkeypatch, options)) > 20


@pytest.mark.parametrize("fault", ["scale@:mul:call=1:value=2", "scale@up:*:call=3:value=2"])
def test_faults_and_profiles_do_not_meet_the_recording(fault):
    traces = []
    for options in (None, {"payload": "sketch", "sources": ("modules", "operators")}):
        set_profile("ascend910b", [fault])
        traces.append(train(options)[0])
    assert traces[0] == traces[1]


def test_out_of_memory_keeps_the_tier_and_says_so(monkeypatch):
    def fail(*arguments):
        raise torch.cuda.OutOfMemoryError("out of memory")

    expected = train({"payload": "statistics"})
    monkeypatch.setattr(condensing, "_sum_up", fail)
    trace, dump = train({"payload": "statistics"})
    assert trace == expected[0]
    same_records(dump, expected[1])
    assert any("ran out of memory for statistics" in note for note in dump.notes)


def test_no_memory_at_all_leaves_the_shape_and_the_reason(monkeypatch):
    def fail(*arguments):
        raise torch.cuda.OutOfMemoryError("out of memory")

    trace = train({"payload": "statistics"})[0]
    monkeypatch.setattr(condensing, "_sum_up", fail)
    monkeypatch.setattr("precision_align.recording.staging.stage_fresh", fail)
    again, dump = train({"payload": "statistics"})
    assert again == trace
    lost = [r for r in dump.records if r.nbytes > 1 << 16]
    assert lost
    assert all((r.tier, r.digest) == (Tier.FINGERPRINT, b"") and "out of memory" in r.reason for r in lost)


def test_a_trigger_sees_nan_in_a_fingerprint():
    sink = MemorySink(RunInfo(run="test", created="", rank=0, world=1, device="npu"))
    model = nn.Linear(512, 512).to("npu")
    with capture(model, None, sink=sink, payload="fingerprint", trigger="nan") as recorder:
        for step in range(3):
            x = torch.randn(512, 512)
            x[7, 9] = float("nan") if step == 1 else 0.0
            with recorder.step():
                model(x.to("npu"))
    assert 1 in sink.dump().steps
    assert any("1 NaN in input" in note for note in sink.dump().notes)
