"""The compiled path of recording and its twin in Python make the same dump, to the last field."""

from __future__ import annotations

import contextlib
import copy
import gc
import subprocess
import sys
import threading
import weakref
from dataclasses import asdict

import pytest
import torch
from torch import nn

from precision_align.recording import native
from precision_align.recording.calls import CallRecorder
from precision_align.recording.session import capture

pytestmark = pytest.mark.live

if native.load_native() is None:
    pytest.skip("there is no C compiler with Python's headers here", allow_module_level=True)

ALL = ("modules", "gradients", "parameters", "optimizer")


def tell(dump):
    """All that a dump says."""
    words = {
        str(record.key): None if (found := dump.map_payload(record.key)) is None else found.tobytes()
        for record in dump.records
        if not record.reason and record.tier == "full"
    }
    return [asdict(record) for record in dump.records], words, [asdict(call) for call in dump.calls], dump.notes


@pytest.fixture
def both(monkeypatch, new_sink):
    """Runs a training function once on each path: what the dumps say."""

    def run(train, **options):
        told = []
        for name in ("compiled", "python"):
            monkeypatch.setenv(native.VARIABLE, name)
            sink = new_sink()

            def session(model, optimizer=None, sink=sink):
                return capture(model, None, sink=sink, optimizer=optimizer, **options)

            train(session)
            told.append(tell(sink.dump()))
        return told

    return run


def compare(compiled, python):
    for left, right in zip(compiled[0], python[0]):
        assert left == right
    assert len(compiled[0]) == len(python[0])
    assert compiled[1] == python[1]
    for left, right in zip(compiled[2], python[2]):
        assert left == right
    assert compiled[3] == python[3]


@pytest.mark.parametrize("options", [{"sources": ALL}, {"payload": "statistics"}, {"select": ["*fc*"]}])
def test_every_kind_of_model(both, run_training, kind, options):
    compare(*both(lambda session: run_training(kind, session), **options))


def test_the_compiled_path_is_taken(monkeypatch, new_sink):
    """What the others compare is not the same path twice: only the outermost call goes the other way."""
    seen = []
    enter = CallRecorder.enter

    def follow(self, frames, module, scope, args, kwargs):
        seen.append(scope)
        enter(self, frames, module, scope, args, kwargs)

    monkeypatch.setattr(CallRecorder, "enter", follow)
    model = nn.Sequential(nn.Linear(3, 3), nn.Sequential(nn.ReLU(), nn.Linear(3, 2)))
    for name, expected in (("compiled", [""]), ("python", ["", "0", "1", "1.0", "1.1"])):
        monkeypatch.setenv(native.VARIABLE, name)
        seen.clear()
        with capture(model, None, sink=new_sink()) as recorder, recorder.step():
            model(torch.ones(2, 3)).sum().backward()
        assert seen == expected


class Odd(nn.Module):
    """What modules may be given and give back."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.drop, self.norm = Inner(), nn.Dropout(0.5), nn.BatchNorm1d(4)

    def forward(self, x, cache):
        a = self.inner(x, x, scale=2.0, cache=cache)
        b = self.inner({"x": x.T.contiguous().T, "y": [x[:2], None]}, cache=cache)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            c = self.inner(x, cache=cache)
        with torch.no_grad():
            d = self.inner(x.detach(), cache=cache)
        with contextlib.suppress(ZeroDivisionError):
            self.inner(x, fail=True, cache=cache)
        e = self.norm(self.drop(a["sum"]))
        return (
            e + b["sum"].sum() + c["sum"].float() + d["sum"] + x.imag if x.is_complex() else e + c["same"] + b["sum"][0]
        )


class Inner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.tied = self.fc

    def forward(self, x, *others, scale=1.0, fail=False, cache=None):
        if fail:
            raise ZeroDivisionError
        if isinstance(x, dict):
            x = x["x"]
        cache.data.add_(1)  # unseen by the version counter
        h = self.tied(self.fc(x))
        same = x
        return {"sum": h * scale, "same": same, "pair": (h, h[:1]), "none": None, "sparse": torch.eye(2).to_sparse()}


def test_odd_arguments_and_results(both):
    def train(session):
        torch.manual_seed(0)
        model, cache = Odd(), torch.zeros(3)
        with session(model) as recorder:
            for _ in range(3):
                with recorder.step():
                    model(torch.randn(5, 4, requires_grad=True), cache).sum().backward(retain_graph=True)

    compare(*both(train, sources=ALL))


def test_a_step_that_breaks_off_and_gradients_that_come_late(both):
    def train(session):
        torch.manual_seed(0)
        model, late = nn.Sequential(nn.Linear(3, 3), nn.Sequential(nn.Linear(3, 3))), []
        with session(model) as recorder:
            for number in range(3):
                with contextlib.suppress(KeyError), recorder.step():
                    out = model(torch.randn(2, 3)).sum()
                    late.append(out)
                    if number == 1:
                        raise KeyError
                    out.backward(retain_graph=True)
            late[0].backward()

    compare(*both(train, sources=("modules", "gradients")))


def test_gradients_in_another_dtype_and_twice(both):
    def train(session):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3)), nn.Linear(3, 1))
        with session(model) as recorder, recorder.step():
            with torch.autocast("cpu", dtype=torch.bfloat16):
                out = model(torch.randn(4, 3))
            out.sum().backward(retain_graph=True)
            out.mean().backward()

    compare(*both(train, sources=("modules", "gradients")))


class Unhooked(nn.Module):
    """Its hooks go while it runs: nobody sees its end."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 3)

    def forward(self, x):
        x = self.fc(x)
        self._forward_hooks.clear()
        return x


def test_a_call_whose_end_is_not_seen(both):
    def train(session):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Sequential(Unhooked(), nn.ReLU()), nn.Linear(3, 1))
        with session(model) as recorder, recorder.step():
            model(torch.randn(4, 3)).sum().backward()

    compiled, python = both(train, sources=("modules", "gradients"))
    compare(compiled, python)
    assert [call["error"] for call in compiled[2]].count("its end was not seen") == 1


def test_threads(both):
    """Several at once: each call of each is there, with its own words."""
    model = nn.Sequential(nn.Sequential(nn.Linear(3, 3), nn.ReLU()), nn.Linear(3, 1))

    def train(session):
        with session(model) as recorder, recorder.step():
            threads = [
                threading.Thread(target=lambda n=n: [model(torch.full((2, 3), float(n))) for _ in range(5)])
                for n in range(4)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

    compiled, python = both(train, sources=("modules", "gradients"))
    for told in (compiled, python):
        outputs = [key for key in told[1] if "/0.0/" in key and key.endswith("/output/")]
        assert len(outputs) == len(set(outputs)) == 20
    assert sorted(compiled[1].values()) == sorted(python[1].values())


def test_nothing_is_kept_alive(new_sink):
    model = nn.Sequential(nn.Linear(3, 3), nn.Sequential(nn.Linear(3, 3)))
    sink = new_sink()
    with capture(model, None, sink=sink, sources=("modules", "gradients")) as recorder:
        with recorder.step():
            out = model(torch.ones(2, 3))
            inner = weakref.ref(out)
            out.sum().backward()
        del out
        assert inner() is None
        calls = weakref.ref(recorder._calls)
    del recorder
    gc.collect()
    assert calls() is None
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert copy.deepcopy(model) is not None


REFERENCES = """
import gc, sys
import torch
from torch import nn
from precision_align.recording.session import capture
from precision_align.storage.memory import MemorySink
from precision_align.core.records import RunInfo

model = nn.Sequential(nn.Linear(3, 3), nn.Sequential(nn.LayerNorm(3), nn.GELU()), nn.Linear(3, 2))
def run(steps):
    sink = MemorySink(RunInfo(run="test", created="", rank=0, world=1, device="cpu"))
    with capture(model, None, sink=sink, sources=("modules", "gradients")) as recorder:
        for _ in range(steps):
            with recorder.step():
                model(torch.ones(2, 3, requires_grad=True)).sum().backward()
            model.zero_grad()
    del sink, recorder
    gc.collect()
run(3)
watched = [torch.float32, torch.strided, None, True, False, "", 0, torch.nn.Linear, "input", "output"]
counts, blocks = [sys.getrefcount(item) for item in watched], sys.getallocatedblocks()
run(200)  # one object a step would be 200; what is counted besides comes and goes
after = [sys.getrefcount(item) for item in watched]
assert sys.getallocatedblocks() - blocks < 180, sys.getallocatedblocks() - blocks
assert all(new - old < 20 for new, old in zip(after, counts) if old < 1 << 30), (counts, after)
"""


def test_no_reference_is_lost_or_left():
    done = subprocess.run([sys.executable, "-c", REFERENCES], capture_output=True, text=True)
    assert not done.returncode, done.stderr
