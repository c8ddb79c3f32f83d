"""Facts recorded on the way: random state, loss scale, batches, fallbacks, silent modules, determinism."""

from __future__ import annotations

import inspect
import os
import random
import sys
import warnings

import numpy as np
import pytest
import torch
from torch import nn

from precision_align.core.errors import UsageError
from precision_align.core.terms import Role
from precision_align.recording.batches import describe_batch
from precision_align.recording.determinism import guard_determinism
from precision_align.recording.randomness import describe_generators, seed_everything
from precision_align.recording.session import capture

pytestmark = pytest.mark.live


def test_every_call_knows_the_random_state_it_began_and_ended_with(record):
    class Noisy(nn.Module):
        def __init__(self):
            super().__init__()
            self.drop, self.plain = nn.Dropout(0.5), nn.Identity()

        def forward(self, x):
            return self.plain(self.drop(self.plain(x)))

    model = Noisy()
    dump = record(model, lambda recorder: model(torch.ones(4)))
    calls = sorted(dump.calls, key=lambda call: call.enter)
    assert [call.scope for call in calls] == ["", "plain", "drop", "plain"]
    root, before, drop, after = (call.modes for call in calls)
    assert root["rng"] == before["rng"] == drop["rng"] != after["rng"]
    assert drop["rng_after"] == after["rng"] == root["rng_after"]
    assert "rng_after" not in before
    torch.manual_seed(3)
    first = describe_generators()
    torch.rand(1)
    assert describe_generators() != first
    torch.manual_seed(3)
    assert describe_generators() == first


def scaler(scale):
    kind = getattr(torch.amp, "GradScaler", None)
    if kind is None:
        pytest.skip("torch.amp.GradScaler, which works on a CPU, came with torch 2.3")
    return kind("cpu", init_scale=scale)


def test_the_loss_is_logged_as_it_was_before_scaling(record):
    model = nn.Linear(2, 1)
    optimizer, scaling = torch.optim.SGD(model.parameters(), 0.1), scaler(1024.0)
    kept = []

    def body(recorder):
        for step in range(2):
            with recorder.step():
                loss = model(torch.ones(1, 2)).square().sum()
                kept.append(loss.item())
                (scaling.scale(loss) if step == 0 else loss).backward()
                scaling.step(optimizer) if step == 0 else optimizer.step()
                scaling.update() if step == 0 else None

    before = type(scaling).scale
    dump = record(model, body, optimizer=optimizer)
    points = [(p.step, p.name, p.value) for p in dump.series]
    assert points == [(0, "loss_scale", 1024.0), (0, "loss", kept[0]), (1, "loss", kept[1])]
    losses = [dump.values(r.key).item() for r in dump.records if r.key.role == Role.LOSS]
    assert losses == kept
    assert type(scaling).scale is before


def test_facts_of_batches_are_series_of_every_step(record):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(9, 2)

        def forward(self, input_ids, attention_mask=None, labels=None, sample_id=None):
            return self.emb(input_ids).sum()

    model = Model()
    mask, labels = torch.tensor([[1, 1, 1, 0]]), torch.tensor([[-100, 2, 3, -100]])

    def body(recorder):
        for number in (4, 4, 5):
            with recorder.step():
                model(torch.full((1, 4), number), mask, labels=labels, sample_id=torch.tensor(77 + number))

    dump = record(model, body, facts=True, steps=[1])
    found = {}
    for p in dump.series:
        found.setdefault(p.name, []).append(p.value)
    assert found["batch.length"] == [4, 4, 4]
    assert found["batch.padding_share"] == [0.25] * 3
    assert found["batch.valid_labels"] == [2] * 3
    assert found["batch.id.sample_id"] == [81, 81, 82]
    first, second, third = found["batch.fingerprint"]
    assert first == second != third
    assert first == int(first) < 2**53
    assert dump.steps == [1]


def test_facts_are_of_what_is_there():
    assert dict(describe_batch({})) == {}
    facts = dict(describe_batch({"x": np.ones((2, 3), np.float32), "empty_mask": np.ones((0, 3), np.int64)}))
    assert set(facts) == {"fingerprint", "length"}
    assert facts["length"] == 3
    many = dict(describe_batch({"sample_ids": np.arange(3)}))
    other = dict(describe_batch({"sample_ids": np.arange(1, 4)}))
    assert many["id.sample_ids"] != other["id.sample_ids"]
    assert "id.width" not in dict(describe_batch({"width": np.arange(3)}))


def test_cpu_fallbacks_are_counted_by_line_and_still_heard(record):
    class Falling(nn.Module):
        def forward(self, x):
            for name in ("aten::histc", "aten::histc", "aten::mode"):
                warnings.warn(
                    f"CAUTION: The operator '{name}' is not currently supported on the NPU backend and will fall back "
                    "to run on the CPU.",
                    UserWarning,
                    stacklevel=1,
                )
            warnings.warn("the CPU is warm", UserWarning, stacklevel=1)
            return x

    model = Falling()
    line = inspect.getsourcelines(Falling.forward)[1] + 2
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        shown = warnings.showwarning
        dump = record(model, lambda recorder: model(torch.ones(1)))
        assert warnings.showwarning is shown
    assert len(heard) == 4
    assert [note for note in dump.notes if "fallback" in note] == [
        f"CPU fallback: aten::histc ran on the CPU at {__file__}:{line} (2 times)",
        f"CPU fallback: aten::mode ran on the CPU at {__file__}:{line} (1 times)",
    ]


class Indirect(nn.Module):
    def __init__(self):
        super().__init__()
        self.by_weight, self.by_forward, self.unused = nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2)
        self.seen, self.container = nn.Linear(2, 2), nn.ModuleList([nn.Linear(2, 2)])

    def forward(self, x):
        return self.seen(self.by_forward.forward(x @ self.by_weight.weight) + self.container[0](x))


def test_modules_used_past_their_hooks_are_named_and_the_operators_show_them(record):
    model = Indirect()
    dump = record(model, lambda recorder: model(torch.ones(1, 2)).sum().backward())
    (used,) = [note for note in dump.notes if note.startswith("never called, yet")]
    assert "'by_weight' (weight, bias)" in used
    assert "'by_forward'" in used
    assert "'seen'" not in used
    assert "container" not in used
    (unused,) = [note for note in dump.notes if note.startswith("never called, though")]
    assert "'unused'" in unused
    assert "by_" not in unused
    dump = record(model, lambda recorder: model(torch.ones(1, 2)), sources=("operators",))
    products = [c for c in dump.calls if c.kind in ("aten.addmm.default", "aten.mm.default")]
    assert len(products) == 4


def test_the_guard_reports_every_operator_and_goes_on():
    x = torch.zeros(3)

    def scatter():
        x.put_(torch.tensor([0]), torch.ones(1))

    line = inspect.getsourcelines(scatter)[1] + 1
    settings = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        with guard_determinism() as report:
            scatter()
            scatter()
            warnings.warn("something else", UserWarning, stacklevel=1)
    assert [str(warning.message) for warning in heard] == ["something else"]
    (found,) = report.found
    assert (found.operator, found.line, found.phase, found.count) == ("put_", f"{__file__}:{line}", "forward", 2)
    assert "put_" in str(found)
    now = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    assert now == settings
    with pytest.raises(ZeroDivisionError), guard_determinism():
        raise ZeroDivisionError
    assert torch.are_deterministic_algorithms_enabled() == settings[0]


@pytest.fixture
def restored(monkeypatch):
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
    before = torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic
    yield
    torch.use_deterministic_algorithms(False)
    torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic = before


@pytest.mark.usefixtures("restored")
def test_seeding_everything():
    def draw():
        return random.random(), np.random.rand(), torch.rand(1).item()

    done = seed_everything(11)
    first = draw()
    seed_everything(11)
    assert draw() == first
    seed_everything(12, deterministic=False)
    assert all(left != right for left, right in zip(draw(), first))
    assert done["deterministic"] is True
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":16:8"  # the user's own choice stays
    assert any("PYTHONHASHSEED" in note for note in done["notes"])
    for wrong in (-1, 2**32, 1.5, True, "7"):
        with pytest.raises(UsageError):
            seed_everything(wrong)


def test_huge_expanded_and_meta_and_fake_tensors_cost_nothing(record):
    class Passing(nn.Module):
        def forward(self, *tensors):
            return None

    from torch._subclasses.fake_tensor import FakeTensorMode

    huge = torch.arange(6.0).reshape(2, 3, 1).expand(2, 3, 1 << 31)
    meta = torch.empty(1 << 20, 1 << 20, device="meta")
    with FakeTensorMode():
        fake = torch.empty(3)
    model = Passing()
    dump = record(model, lambda recorder: model(huge, meta, fake))
    records = {r.key.path: r for r in dump.records if r.key.role == Role.INPUT}
    assert records["args.0"].shape == (2, 3, 1 << 31)
    assert records["args.0"].nbytes == 6 * 4 * (1 << 31)
    assert "base" in records["args.0"].reason
    assert dump.values(records["args.0#base"].key).reshape(-1).tolist() == [0, 1, 2, 3, 4, 5]
    assert records["args.1"].shape == (1 << 20, 1 << 20)
    assert "meta" in records["args.1"].reason
    assert "FakeTensor" in records["args.2"].reason


@pytest.mark.parametrize(
    "name", ["float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"]
)
def test_every_float8_reads_back_bit_exact(name, record):
    dtype = getattr(torch, name, None)
    if dtype is None:
        pytest.skip(f"this torch has no {name}")
    words = torch.arange(256, dtype=torch.uint8).reshape(16, 16)
    model = nn.Identity()
    dump = record(model, lambda recorder: model(words.view(dtype).t()))
    (given,) = [r for r in dump.records if r.key.role == Role.INPUT]
    assert np.array_equal(dump.payload(given.key), words.t().numpy())
    assert given.dtype == name


def test_saved_tensors_on_the_cpu_change_nothing(kinds, run_training, sink):
    kind = kinds["gpt"]

    def offloaded(model, optimizer):
        return torch.autograd.graph.save_on_cpu()

    class Both:
        def __init__(self, model, optimizer):
            self.parts = torch.autograd.graph.save_on_cpu(), capture(model, None, sink=sink, optimizer=optimizer)

        def __enter__(self):
            self.parts[0].__enter__()
            return self.parts[1].__enter__()

        def __exit__(self, *error):
            self.parts[1].__exit__(*error)
            self.parts[0].__exit__(*error)

    plain, _, _ = run_training(kind)
    watched, _, _ = run_training(kind, Both)
    assert watched == plain
    assert any(r.key.role == Role.GRADIENT for r in sink.dump().records)


def test_data_parallel_without_devices_is_recorded_through(record, monkeypatch):
    # with devices, simulated ones included, it would make replicas
    module = sys.modules["torch.nn.parallel.data_parallel"]  # torch gives the function the module's name
    monkeypatch.setattr(module, "_get_available_device_type", lambda: None)
    model = nn.DataParallel(nn.Sequential(nn.Linear(2, 2), nn.ReLU()))
    dump = record(model, lambda recorder: model(torch.ones(3, 2)).sum().backward())
    assert {c.scope for c in dump.calls} == {"", "module", "module.0", "module.1"}
