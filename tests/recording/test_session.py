"""Sessions: arguments, steps, series, what is left behind."""

from __future__ import annotations

import gc
import re
import weakref

import pytest
import torch
from torch import nn

from precision_align.core.errors import DumpError, NothingCaptured, PrecisionAlignError, StorageFull, UsageError
from precision_align.core.terms import Tier
from precision_align.recording.plan import format_steps, make_plan, parse_steps
from precision_align.recording.session import capture
from precision_align.storage.memory import MemorySink
from precision_align.storage.opening import open_dump

pytestmark = pytest.mark.live


def small():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 1))


def run(model, recorder, steps=3):
    for _ in range(steps):
        with recorder.step():
            model(torch.ones(2, 3)).sum().backward()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"budget_bytes": 0}, "budget_bytes"),
        ({"ring": 0, "trigger": "nan"}, "ring"),
        ({"trigger": "loss>>3"}, "'loss>>3'"),
        ({"trigger": []}, "condition"),
        ({"trigger": "signal:NOSUCH"}, "NOSUCH"),
        ({"switch": "sometimes"}, "'sometimes'"),
        ({"force": "no such dump"}, "no such dump"),
        ({"force": 3}, "not a int"),
        ({"force": "x", "sources": ("gradients",)}, "'modules'"),
        ({"sources": ["modules", "gradient"]}, "'gradient'"),
        ({"payload": "everything"}, "'everything'"),
        ({"payload": {"*": "ful"}}, "'ful'"),
        ({"steps": "1,x"}, "'x'"),
        ({"steps": "3-"}, "'3-'"),
        ({"optimizer": 3}, "step"),
        ({"optimizer": [nn.Linear(1, 1)]}, "step"),
    ],
)
def test_arguments_that_do_not_fit_are_refused_before_anything_happens(options, text, tmp_path):
    with pytest.raises((UsageError, DumpError), match=text):
        capture(small(), tmp_path / "dump", **options)
    assert not (tmp_path / "dump").exists()


def test_the_model_and_the_place_are_checked(tmp_path):
    with pytest.raises(UsageError, match="function"):
        capture(lambda x: x, tmp_path / "dump")
    with pytest.raises(UsageError, match="path"):
        capture(small(), None)
    (tmp_path / "note.txt").write_text("mine")
    with pytest.raises(UsageError):
        capture(small(), tmp_path)
    assert (tmp_path / "note.txt").read_text() == "mine"


def test_step_lists():
    assert parse_steps("3, 10-12") == {3, 10, 11, 12}
    assert parse_steps(5) == {5}
    assert parse_steps([1, 2]) == {1, 2}
    assert parse_steps(None) is None
    assert 10**9 in parse_steps(range(10**12))
    assert format_steps({3, 10, 11, 12}) == "3,10-12"
    assert format_steps(range(2, 5)) == "2-4"
    assert make_plan(payload={"*": "sketch", "a.*": "full"}).tier("a.b") is Tier.FULL
    assert make_plan(payload={"*": "sketch", "a.*": "full"}).tier("a") is Tier.SKETCH
    assert make_plan(payload={"a": "sketch"}).tier("") is Tier.FULL


def test_only_the_steps_asked_for_are_recorded_but_every_loss_is(record):
    model = small()
    dump = record(model, lambda recorder: run(model, recorder, 5), steps="1,3-9")
    assert {r.key.step for r in dump.records} == {c.step for c in dump.calls} == {1, 3, 4}
    assert [(p.step, p.name) for p in dump.series] == [(step, "loss") for step in range(5)]


def test_steps_without_step_are_counted_too(record):
    model = small()
    dump = record(model, lambda r: [model(torch.ones(1, 3)).sum().backward() for _ in range(4)], steps=[2])
    assert {r.key.step for r in dump.records} == {c.step for c in dump.calls} == {2}
    assert len(dump.series) == 4


def test_select_keeps_calls_and_drops_tensors(record):
    model = small()
    dump = record(
        model, lambda recorder: run(model, recorder, 1), select="2*", payload={"*": "statistics", "2": "full"}
    )
    assert {c.scope for c in dump.calls} == {"", "0", "1", "2"}
    assert {r.key.scope for r in dump.records if r.key.source != "point"} == {"2"}
    assert {r.tier for r in dump.records if r.key.source != "point"} == {Tier.FULL}


@pytest.mark.parametrize(
    ("sources", "expected"),
    [
        (["modules"], {("module", "input"), ("module", "output")}),
        (["gradients"], {("module", "gradient"), ("parameters", "gradient")}),
        ("parameters", {("parameters", "parameter")}),
    ],
)
def test_sources(record, sources, expected):
    model = small()
    dump = record(model, lambda recorder: run(model, recorder, 1), sources=sources)
    found = {(str(r.key.source), str(r.key.role)) for r in dump.records}
    assert found - {("point", "loss")} == expected


def test_what_the_user_logs_takes_the_place_of_what_we_find(record):
    model = small()

    def body(recorder):
        with recorder.step(7):
            loss = model(torch.ones(1, 3)).sum()
            loss.backward()
            recorder.log(loss=loss * 2, lr=0.5)
        with recorder.step():
            model(torch.ones(1, 3)).sum().backward()
            model(torch.ones(1, 3)).sum().backward()
        with pytest.raises(UsageError, match="one-element"):
            recorder.log(loss="low")

    dump = record(model, body)
    once = model(torch.ones(1, 3)).sum().item()
    points = [(p.step, p.micro, p.name, p.value) for p in dump.series]
    assert points == [(7, 0, "loss", once * 2), (7, 0, "lr", 0.5), (8, 0, "loss", once), (8, 1, "loss", once)]


def test_several_losses_of_one_forward(record):
    model = small()

    def body(recorder):
        with recorder.step():
            y = model(torch.ones(1, 3))
            y.sum().backward(retain_graph=True)
            torch.autograd.backward([(y * 2).sum(), (y * 3).sum()])

    dump = record(model, body)
    assert [p.name for p in dump.series] == ["loss", "loss.1", "loss.2"]
    losses = [r for r in dump.records if r.key.role == "loss"]
    assert [(r.key.ordinal, dump.values(r.key).item()) for r in losses] == [
        (i, p.value) for i, p in enumerate(dump.series)
    ]


def test_saved_points(record):
    model = small()

    def body(recorder):
        with recorder.step():
            recorder.save("mask", torch.ones(2, dtype=torch.bool))
            recorder.save("mask", torch.zeros(2, dtype=torch.bool))
            with pytest.raises(UsageError, match="log"):
                recorder.save("mask", 3)

    points = [r for r in record(model, body).records if r.key.source == "point"]
    assert [(r.key.path, r.key.call, r.dtype) for r in points] == [("mask", 0, "bool"), ("mask", 1, "bool")]


@pytest.mark.parametrize(
    ("body", "options", "text"),
    [
        (lambda model, recorder: None, {}, "no module call was seen"),
        # an optimizer's steps alone are nothing
        (
            lambda model, recorder: recorder.watch_optimizer(torch.optim.SGD(model.parameters(), 0.1)),
            {},
            "no module call",
        ),
        (lambda model, recorder: run(model, recorder), {"steps": "30-31"}, "(30-31) came: the run had steps 0 to 2"),
    ],
)
def test_an_empty_dump_is_an_error_with_its_reason(record, body, options, text):
    model = small()
    with pytest.raises(NothingCaptured, match=re.escape(text)):
        record(model, lambda recorder: body(model, recorder), **options)
    assert any(text in note for note in record.sink.dump().notes)


def test_an_empty_dump_hides_no_error_of_the_users_and_is_none_where_recording_stayed_switched_off(record, tmp_path):
    model = small()
    with pytest.raises(KeyError):
        record(model, lambda recorder: {}["no"])
    dump = record(model, lambda recorder: run(model, recorder), switch=f"file:{tmp_path / 'never'}")
    assert any("never switched on" in note for note in dump.notes)
    assert not record(model, lambda recorder: recorder.log(accuracy=0.5)).calls


def test_a_session_leaves_nothing_behind(record):
    model, backward = small(), torch.autograd.backward
    before = {name: dict(vars(module)) for name, module in model.named_modules()}
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    record(model, lambda recorder: run(model, recorder), optimizer=optimizer)
    assert torch.autograd.backward is backward
    assert "step" not in vars(optimizer)
    for name, module in model.named_modules():
        assert vars(module).keys() == before[name].keys()
        assert not module._forward_hooks
        assert not module._forward_pre_hooks
        assert not module._forward_hooks_with_kwargs
        assert not module._forward_hooks_always_called
    assert all(parameter._backward_hooks is None for parameter in model.parameters())


def test_activations_are_freed_as_without_a_session(record):
    model = small()
    freed = []

    def body(recorder):
        with recorder.step():
            y = model(torch.ones(2, 3))
            reference = weakref.ref(y)
            y.sum().backward()
            del y
            freed.append(reference() is None)

    gc.disable()
    try:
        record(model, body)
    finally:
        gc.enable()
    assert freed == [True]


def test_users_exceptions_pass_and_the_dump_is_closed(tmp_path):
    problem, model = KeyError("mine"), small()

    def train():
        with capture(model, tmp_path / "dump") as recorder, recorder.step():
            model(torch.ones(1, 3)).sum().backward()
            raise problem

    with pytest.raises(KeyError) as caught:
        train()
    assert caught.value is problem
    dump = open_dump(tmp_path / "dump")
    assert {c.scope for c in dump.calls} == {"", "0", "1", "2"}
    assert not model[0]._forward_hooks


class FailingSink(MemorySink):
    def close(self, info):
        raise StorageFull("no room")


def test_a_sink_that_cannot_close_does_not_hide_the_users_exception(sink):
    failing, model = FailingSink(sink._info), small()
    with pytest.raises(StorageFull), capture(model, None, sink=failing):
        pass
    with (
        pytest.warns(RuntimeWarning, match="no room"),
        pytest.raises(ZeroDivisionError),
        capture(model, None, sink=failing),
    ):
        raise ZeroDivisionError
    assert not model[0]._forward_hooks


class BrokenSink(MemorySink):
    def put(self, draft):
        raise RuntimeError("sink is broken")


def test_faults_of_ours_become_notes_not_exceptions(sink):
    model, broken = small(), BrokenSink(sink._info)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with capture(model, None, sink=broken, optimizer=optimizer) as recorder:
        run(model, recorder, 1)
        optimizer.step()
    assert any("sink is broken" in note for note in recorder.notes)
    assert model[0].weight.grad is not None


def test_sessions_may_be_nested_and_end_in_any_order(sink):
    model, backward = small(), torch.autograd.backward
    outer, inner = sink, MemorySink(sink._info)
    first = capture(model, None, sink=outer)
    second = capture(model[2], None, sink=inner)
    with first as one:
        second.__enter__()
        run(model, one, 1)
    assert torch.autograd.backward is not backward
    model(torch.ones(2, 3)).sum().backward()
    second.__exit__(None, None, None)
    assert torch.autograd.backward is backward
    assert {c.scope for c in outer.dump().calls} == {"", "0", "1", "2"}
    assert [(c.step, c.scope) for c in inner.dump().calls] == [(0, ""), (1, "")]
    assert len(outer.dump().series) == 1
    assert len(inner.dump().series) == 2


def test_somebody_else_wrapping_backward_meanwhile_is_left_in_place(record, monkeypatch):
    model, original = small(), torch.autograd.backward
    calls = []

    def body(recorder):
        ours = torch.autograd.backward
        monkeypatch.setattr(torch.autograd, "backward", lambda *a, **k: (calls.append(1), ours(*a, **k))[1])
        run(model, recorder, 1)

    record(model, body)
    assert torch.autograd.backward is not original
    dump = record(model, lambda recorder: run(model, recorder, 1))
    assert len(dump.series) == 1
    assert calls == [1, 1]


def test_append_and_overwrite(tmp_path):
    model = small()
    with capture(model, tmp_path / "dump") as recorder:
        run(model, recorder, 1)
    with capture(model, tmp_path / "dump", append=True) as recorder, recorder.step(1):
        model(torch.ones(1, 3))
    assert {c.step for c in open_dump(tmp_path / "dump").calls} == {0, 1}
    with capture(model, tmp_path / "dump", overwrite=True) as recorder, recorder.step(5):
        model(torch.ones(1, 3))
    assert {c.step for c in open_dump(tmp_path / "dump").calls} == {5}


def test_a_closed_session_refuses_steps(record):
    model = small()
    kept = []
    record(model, lambda recorder: (run(model, recorder), kept.append(recorder)))
    with pytest.raises(PrecisionAlignError, match="inside the session"), kept[0].step():
        pass


def test_a_step_number_that_comes_again_is_not_mixed_with_the_first(record):
    model = small()

    def body(recorder):
        for number in (3, 4, 3, 5):
            with recorder.step(number):
                model(torch.ones(1, 3)).sum().backward()

    dump = record(model, body)
    assert [c.step for c in dump.calls if c.scope == ""] == [3, 4, 5]
    assert any("step 3 came more than once" in note for note in dump.notes)


@pytest.mark.parametrize("number", [-1, 1.5, "3"])
def test_step_numbers_are_checked(record, number):
    def body(recorder):
        with pytest.raises(UsageError, match="number from 0"), recorder.step(number):
            pass
        model(torch.ones(1, 3))

    model = small()
    record(model, body)


def test_appending_goes_on_counting(tmp_path):
    model = small()
    for _ in range(2):
        with capture(model, tmp_path / "dump", append=True):
            for _ in range(2):
                model(torch.ones(1, 3))
    assert [c.step for c in open_dump(tmp_path / "dump").calls if c.scope == ""] == [0, 1, 2, 3]


def test_two_sessions_side_by_side_keep_to_their_own_models(sink):
    left, right, other = small(), small(), MemorySink(sink._info)
    with capture(left, None, sink=sink) as one, capture(right, None, sink=other) as two:
        for _ in range(2):
            with one.step(), two.step():
                for scale, model in ((1, left), (4, right)):
                    (model(torch.ones(1, 3)).sum() * scale).backward()
    first, second = sink.dump(), other.dump()
    assert [p.value * 4 for p in first.series] == [p.value for p in second.series]
    assert len(first.series) == 2
    assert len(first.records) == len(second.records)
    losses = [r for r in first.records if r.key.role == "loss"]
    backward = [r.order for r in first.records if r.key.phase == "backward" and r.key.step == 0]
    assert losses[0].order < min(backward)


def test_a_session_is_entered_once(sink):
    model = small()
    session = capture(model, None, sink=sink)
    with session:
        model(torch.ones(1, 3))
    with pytest.raises(UsageError, match="once"), session:
        pass
