"""The oracle's rule on raw evidence, as it is used where torch is not installed."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from precision_align.comparison import replaying
from precision_align.comparison.engine import Engine
from precision_align.core.errors import NothingInCommon, UsageError
from precision_align.core.terms import Kind, Phase, Role, Site, Status, Verdict
from precision_align.divergence.locating import locate
from precision_align.recording.session import capture
from precision_align.storage.memory import MemorySink

X = torch.randn(16, 8, generator=torch.Generator().manual_seed(0))


@pytest.fixture(autouse=True)
def without_torch(monkeypatch):
    """The engine finds no replay, as in a venv without torch; the recordings themselves need it."""

    def refuse(name):
        raise ModuleNotFoundError("No module named 'torch'", name="torch")

    monkeypatch.setattr(replaying, "find_spec", lambda name: None)
    monkeypatch.setattr(replaying, "import_module", refuse)


class Block(nn.Module):
    def __init__(self, gain=1.0):
        super().__init__()
        self.a, self.act, self.b, self.gain = nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8), gain

    def forward(self, x):
        return x + self.b(self.act(self.a(x)) * self.gain)


class Net(nn.Module):
    def __init__(self, faulty=-1):
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(Block(1.1 if index == faulty else 1.0) for index in range(3))
        self.head = nn.Linear(8, 4)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def record(model, x=X, payload="full", backward=False):
    sink = MemorySink()
    with capture(model, None, sink=sink, payload=payload) as recorder, recorder.step():
        y = model(x)
        if backward:
            y.square().sum().backward()
    return sink.dump()


def compare(reference, candidate, **options):
    x = options.pop("candidate_x", X)
    return locate(Engine(record(reference, **options), record(candidate, x, **options)).run())


def patch(module, change):
    original = module.forward
    module.forward = lambda *args: change(original(*args))


def faulty_leaf(path="blocks.1.act", factor=1.1):
    model = Net()
    patch(model.get_submodule(path), lambda y: y * factor)
    return model


def test_equal_runs_are_aligned_and_say_that_there_was_no_replay():
    found = compare(Net(), Net())
    assert (found.verdict, found.first) == (Verdict.ALIGNED, None)
    assert any("torch is not installed" in note for note in found.notes)


def test_noise_of_rounding_is_aligned():
    assert compare(Net(), faulty_leaf(factor=1 + 2e-7)).verdict == Verdict.ALIGNED


@pytest.mark.parametrize("path", ["blocks.0.a", "blocks.1.act", "blocks.2.b", "head"])
@pytest.mark.parametrize("payload", ["full", "sketch", "statistics"])
def test_a_faulty_leaf_is_blamed(path, payload):
    found = compare(Net(), faulty_leaf(path), payload=payload)
    assert (found.first.scope, found.first.site, found.first.kind) == (path, Site.MODULE, Kind.ORIGIN)
    assert "raw difference" in found.first.evidence


@pytest.mark.parametrize("block", [0, 1, 2])
def test_inline_code_is_blamed(block):
    found = compare(Net(), Net(block))
    assert (found.first.scope, found.first.site) == (f"blocks.{block}", Site.INLINE)


def test_nothing_after_the_origin_is_blamed():
    found = compare(Net(), faulty_leaf("blocks.0.a"))
    assert [divergence.scope for divergence in found.frontier] == ["blocks.0.a"]
    later = [row for row in found.records if row.scope == "head" and row.role == Role.OUTPUT]
    assert [row.status for row in later] == [Status.INCONCLUSIVE]


def test_other_inputs_are_blamed_first():
    found = compare(Net(), Net(), candidate_x=X + 1)
    assert (found.first.scope, found.first.site) == ("", Site.INPUTS)


def test_inputs_prepared_with_other_rounding_warn():
    found = compare(Net(), Net(), candidate_x=X * (1 + 1e-7))
    assert found.verdict == Verdict.ALIGNED
    assert Status.WARN in {row.status for row in found.records if row.site == Site.INPUTS}


def test_other_weights_are_blamed_first():
    candidate = Net()
    with torch.no_grad():
        candidate.blocks[2].a.weight.mul_(1.01)
    found = compare(Net(), candidate)
    assert (found.first.scope, found.first.site) == ("blocks.2.a", Site.PARAMETERS)


def test_hashes_alone_find_equal_runs_and_the_first_difference():
    assert compare(Net(), Net(), payload="fingerprint").verdict == Verdict.ALIGNED
    found = compare(Net(), faulty_leaf(), payload="fingerprint")
    assert found.first is None or found.first.scope == "blocks.1.act"
    assert found.verdict != Verdict.ALIGNED


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_one_nonfinite_value_is_a_difference(value):
    def spoil(y):
        y = y.clone()
        y[-1, -1] = value
        return y

    model = Net()
    patch(model.blocks[1].act, spoil)
    assert compare(Net(), model).first.scope == "blocks.1.act"


def test_another_shape_is_a_difference():
    model = Net()
    patch(model.head, lambda y: y[:, :3])
    found = compare(Net(), model)
    assert (found.first.scope, "shape" in found.first.evidence) == ("head", True)


def test_a_gradient_that_goes_wrong():
    class Wrong(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x.tanh()

        @staticmethod
        def backward(ctx, gradient):
            return gradient * 0.5

    model = Net()
    model.blocks[1].act.forward = Wrong.apply
    found = compare(Net(), model, backward=True)
    assert (found.first.scope, found.first.phase) == ("blocks.1.act", Phase.BACKWARD)


def test_dropout_masks_are_random_not_wrong():
    class Dropped(Net):
        def __init__(self, seed):
            super().__init__()
            self.drop, self.seed = nn.Dropout(0.5), seed

        def forward(self, x):
            torch.manual_seed(self.seed)
            return super().forward(self.drop(x))

    found = compare(Dropped(1), Dropped(2))
    assert (found.first.scope, found.first.kind) == ("drop", Kind.RANDOM)


def test_a_missing_and_an_extra_call_are_listed():
    class Short(Net):
        def forward(self, x):
            return self.head(self.blocks[0](x))

    found = compare(Net(), Short())
    assert found.verdict == Verdict.DIVERGED
    missing = {row.scope for row in found.records if row.status == Status.MISSING}
    assert {"blocks.1", "blocks.2"} <= missing


def test_replay_cannot_be_asked_for():
    with pytest.raises(UsageError, match="needs torch"):
        Engine(record(Net()), record(Net()), replay=Net())


def test_runs_of_two_models():
    class Other(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(8, 4)

        def forward(self, x):
            return self.fc(x)

    reference, candidate = record(Net()), record(Other())
    try:
        found = locate(Engine(reference, candidate).run())
    except NothingInCommon:
        return
    assert found.verdict == Verdict.NOT_COMPARABLE


def test_progress_is_told():
    told = []
    Engine(record(Net()), record(Net())).run(lambda done, total: told.append((done, total)))
    assert told[-1][0] == told[-1][1] == len(told)
