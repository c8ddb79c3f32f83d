"""Swapped modules, functions and operators: the same training where nothing is wrong, cured where the device is."""

from __future__ import annotations

import copy
import pickle
import warnings

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from precision_align.core.errors import UsageError
from precision_align.devices import simulated
from precision_align.recording.session import capture

pytestmark = pytest.mark.live

simulated.reserve_device()


@pytest.fixture
def npu():
    """Installs the simulated device with faults; the profile ``none`` is the CPU to the last bit."""
    if not simulated.is_supported():
        pytest.skip("the simulated device needs torch >= 2.11")
    simulated.install_simulated("none")
    yield lambda *faults: simulated.install_simulated("none", faults)
    simulated.set_profile("none")


def descend(parameters):
    return torch.optim.SGD(parameters, 0.1)


@pytest.fixture
def train(new_sink, loss_of):
    """Trains two steps; gives the state and gradients, and the dump."""

    def run(build, batch, swap=None, device="cpu", learn=descend, **options):
        torch.manual_seed(3)
        model = build().to(device)
        optimizer = learn(model.parameters())
        sink = new_sink()
        with capture(model, None, optimizer=optimizer, sink=sink, swap=swap, **options) as recorder:
            for _ in range(2):
                with recorder.step():
                    optimizer.zero_grad()
                    inputs = [part.detach().to(device).requires_grad_(part.requires_grad) for part in batch()]
                    loss_of(model(*inputs)).backward()
                    optimizer.step()
        tensors = [*model.state_dict().values(), *(p.grad for p in model.parameters() if p.grad is not None)]
        return [tensor.detach().cpu() for tensor in tensors], sink.dump()

    return run


def differ(left, right, tolerance=0.0):
    """Whether any value differs by more than ``tolerance`` of its tensor's largest (of 1, where all are smaller): a sum
    that cancels keeps the rounding of its terms."""
    pairs = [(a.detach().double(), b.detach().double()) for a, b in zip(left, right)]
    return any(not torch.allclose(a, b, rtol=0, atol=tolerance * max(1.0, float(a.abs().max()))) for a, b in pairs)


def descend_slowly(parameters):
    """Steps in proportion to the gradients: AdamW makes a whole step of a gradient that is nothing but rounding."""
    return torch.optim.SGD(parameters, 1e-4, momentum=0.9)


def test_a_right_device_computes_the_same_on_the_cpu(npu, train, kind):
    if hasattr(kind.build(), "blocks") and hasattr(kind.build(), "emb"):
        pytest.skip("it makes its mask on the CPU")
    npu()
    expected, _ = train(kind.build, kind.batch, device="npu", learn=descend_slowly)
    found, dump = train(kind.build, kind.batch, {"?*": "cpu"}, "npu", learn=descend_slowly)
    assert dump.info.capture["swapped"]["?*=cpu"] >= 2
    # gradients of one tensor's three uses are summed in another order: a rounding (6e-8) or two of the largest term
    assert not differ(expected, found, 1e-6)
    devices = {record.key.scope: record.device for record in dump.records if record.key.role == "output"}
    assert devices.get("", "npu:0") == "npu:0"


class Normed(nn.Module):
    """A norm that is broken on the device, called as a module and recomputed by a checkpoint where asked."""

    def __init__(self, recompute=False):
        super().__init__()
        self.recompute = recompute
        self.up, self.norm, self.down = nn.Linear(6, 12), nn.LayerNorm(12), nn.Linear(12, 6)

    def forward(self, x):
        h = self.up(x)
        h = checkpoint(self.norm, h, use_reentrant=False) if self.recompute else self.norm(h)
        return self.down(nn.functional.gelu(h))


class Recomputed(Normed):
    def __init__(self):
        super().__init__(recompute=True)


def batch():
    return (torch.randn(4, 6).requires_grad_(),)


@pytest.mark.parametrize(
    "swap",
    [
        "norm=cpu",
        "n?rm=composed",
        "torch.nn.functional.layer_norm=cpu",
        "torch.nn.functional.layer_norm=composed",
        "aten.native_layer_norm.default=cpu",
        "aten.native_layer_norm*=composed",
    ],
)
def test_each_kind_of_swap_cures_a_broken_operator(npu, train, swap):
    right, _ = train(Normed, batch)
    npu("scale@*:layer_norm:value=1.5:call=*")
    broken, _ = train(Recomputed, batch, device="npu")
    pattern, _, how = swap.partition("=")
    cured, dump = train(Recomputed, batch, {pattern: how}, "npu")
    assert differ(right, broken, 1e-3)
    assert not differ(right, cured, 1e-5)
    # each call comes twice; a glob of an operator fits its backward, too
    assert dump.info.capture["swapped"][swap] == (6 if pattern.endswith("*") else 4)
    assert any(f"on purpose: {swap}" in note for note in dump.notes)


def test_a_swap_beside_the_fault_cures_nothing_and_one_of_nothing_is_said(npu, train):
    right, _ = train(Normed, batch)
    npu("scale@*:layer_norm:value=1.5:call=*")
    with pytest.warns(RuntimeWarning, match="the swap down.bias=cpu changed nothing"):
        found, dump = train(Normed, batch, {"down": "cpu", "down.bias": "cpu"}, "npu")
    assert differ(right, found, 1e-3)
    assert dump.info.capture["swapped"] == {"down=cpu": 2, "down.bias=cpu": 0}


class Low(nn.Module):
    """A product whose result autocast rounds to bfloat16."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(64, 64), nn.Linear(64, 8)

    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return self.last(torch.cat([self.first(x)])).float()


@pytest.mark.parametrize(
    "swap", [{"first": "fp32"}, {"torch.nn.functional.linear": "fp32"}], ids=["module", "function"]
)
def test_float32_out_of_autocast_keeps_the_dtypes(train, swap):
    rounded, plain = train(Low, lambda: (torch.randn(4, 64),))
    found, dump = train(Low, lambda: (torch.randn(4, 64),), swap)
    assert differ(rounded, found)
    assert not differ(rounded, found, 1e-2)
    dtypes = [{r.key.scope: r.dtype for r in d.records if r.key.role == "output"} for d in (plain, dump)]
    assert dtypes[0] == dtypes[1]
    assert sum(dump.info.capture["swapped"].values()) >= 2


class Cell(nn.Module):
    """Writes into an input and a buffer, replaces another, gives several results and one of its inputs back."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 6)
        self.register_buffer("count", torch.zeros(6))
        self.register_buffer("last", torch.zeros(6))

    def forward(self, x, cache, *, scale):
        cache[0] = x.detach()[0]
        self.count += 1
        self.last = x.detach().mean(0)
        return {"y": self.linear(x) * scale, "parts": (x, cache), "n": 3}


def test_what_is_written_in_place_and_what_comes_back_stay_themselves(npu, new_sink):
    npu()
    results = []
    for swap in (None, {"cell": "cpu"}):
        torch.manual_seed(0)
        model = nn.ModuleDict({"cell": Cell()}).to("npu")
        x, cache = torch.randn(4, 6).to("npu").requires_grad_(), torch.zeros(2, 6).to("npu")
        with capture(model, None, sink=new_sink(), swap=swap):
            out = model["cell"](x, cache, scale=2.0)
            out["y"].sum().backward()
        assert out["parts"][0] is x
        assert out["parts"][1] is cache
        assert out["n"] == 3
        own = dict(model.named_buffers())
        results.append([out["y"], cache, x.grad, own["cell.count"], own["cell.last"]])
        assert all(tensor.device.type == "npu" for tensor in results[-1])
    assert not differ(*([tensor.cpu() for tensor in found] for found in results))
    assert results[1][3].cpu().tolist() == [1.0] * 6  # once, though the call is tried out before


def test_a_session_leaves_no_trace_and_copies_of_the_model_are_plain(new_sink):
    model = Normed()
    forward = model.norm.forward
    with capture(model, None, sink=new_sink(), swap={"norm": "fp32"}):
        assert model.norm.forward != forward
        model(*batch())
        copies = [copy.deepcopy(model), pickle.loads(pickle.dumps(model))]
    assert all(twin.norm.forward.__self__ is twin.norm for twin in copies)
    assert "forward" not in vars(model.norm)
    assert torch.equal(copies[0](torch.ones(2, 6)), model(torch.ones(2, 6)))


def test_an_unrecorded_step_is_swapped_too_and_generators_go_on_as_they_were(new_sink):
    class Drawing(nn.Module):
        def forward(self, x):
            return (x * torch.rand_like(x)).bfloat16()

    seen = []
    for swap in (None, {"0": "fp32"}):
        torch.manual_seed(5)
        model = nn.Sequential(Drawing(), nn.Linear(3, 3).bfloat16())
        sink = new_sink()
        with capture(model, None, sink=sink, swap=swap, steps="1") as recorder:
            for _ in range(3):
                with recorder.step():
                    seen.append(model(torch.ones(2, 3)))
    assert all(map(torch.equal, seen[:3], seen[3:]))
    assert sink.dump().info.capture["swapped"] == {"0=fp32": 3}


@pytest.mark.parametrize(
    ("swap", "text"),
    [
        ({"norm": "gpu"}, "kind of cpu, composed, fp32"),
        ({"torch.nn.functional.linear": "composed"}, "no composed equivalent; these have: torch.nn.functional.gelu"),
        ({"": "cpu"}, "whole model"),
    ],
)
def test_a_swap_that_cannot_be_is_refused_before_training(new_sink, swap, text):
    with pytest.raises(UsageError, match=text):
        capture(Normed(), None, sink=new_sink(), swap=swap)


def test_what_could_not_be_swapped_is_said(new_sink):
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        with capture(model, None, sink=new_sink(), swap={"0": "composed", "aten.t.default": "cpu"}):
            model(torch.ones(2, 3))
    texts = " ".join(str(one.message) for one in told)
    for text in ("it is a view: ", "aten.t.default", "0=composed changed nothing"):
        assert text in texts


def test_running_statistics_of_a_device_are_recorded_as_they_change(npu, train):
    """Batch normalisation writes them without counting a version: a copy of the step before must not stand for them."""
    npu()

    def build():
        return nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6))

    def read(device):
        _, dump = train(build, lambda: (torch.randn(4, 6),), device=device, sources=("modules", "functions"))
        return [
            (str(record.key), dump.payload(record.key).tolist())
            for record in dump.records
            if record.key.path.rpartition(".")[2] in ("running_mean", "running_var") or "written" in record.key.path
        ]

    found = read("npu")
    assert found == read("cpu")
    assert len({str(value) for key, value in found if key.endswith("after.running_mean")}) == 2


def test_optimizer_states_of_a_device_are_recorded_as_they_change_among_operators(npu, train):
    """Inside a dispatch mode torch counts no version where a list of tensors is written."""
    npu()

    def read(device):
        def adamw(parameters):
            return torch.optim.AdamW(parameters, 0.1, foreach=True)

        sources = ("optimizer", "operators")
        _, dump = train(Normed, batch, device=device, learn=adamw, sources=sources)
        return {
            str(record.key): torch.from_numpy(dump.payload(record.key))
            for record in dump.records
            if record.key.role == "state" or "written" in record.key.path
        }

    found, expected = read("npu"), read("cpu")
    assert {key for key in found if "after.exp_avg" in key}
    assert {key for key in found if "written" in key}
    common = found.keys() & expected.keys()
    assert [key for key in sorted(common) if not torch.allclose(found[key], expected[key], atol=1e-6)] == []
