"""The operator-level source: names, places, lines, values and producers, and nothing changed."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from precision_align.core.records import OPERATOR_SCOPE
from precision_align.core.terms import Pass, Phase, Role, Source
from precision_align.recording.session import capture

pytestmark = pytest.mark.live
ALL = ("modules", "gradients", "parameters", "optimizer", "functions", "operators")


class Inner(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.full((3,), 2.0))

    def forward(self, x):
        return torch.exp(x) * self.weight


class Outer(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = Inner()

    def forward(self, x):
        y = self.inner(x)
        return self.inner(y.t().t()).cos()


LINE = inspect.getsourcelines(Inner.forward)[1] + 1


def operators(dump, **wanted):
    calls = [c for c in dump.calls if c.scope.startswith(OPERATOR_SCOPE)]
    return [c for c in calls if all(c.modes[key] == value for key, value in wanted.items())]


def tensors(dump, role, op, phase=Phase.FORWARD):
    found = [r for r in dump.records if r.key.source == Source.ATEN and r.key.op == op and r.key.phase == phase]
    return [r for r in found if r.key.role == role]


def test_forward_operators_have_module_stack_line_and_values(record):
    model, x = Outer(), torch.randn(2, 3)
    dump = record(model, lambda recorder: model(x), sources=("operators",))
    exps = [c for c in operators(dump) if c.kind == "aten.exp.default"]
    assert [c.scope for c in exps] == [OPERATOR_SCOPE + "inner"] * 2
    assert [(c.call, c.modes["module_call"], c.modes["stack"]) for c in exps] == [
        (0, 0, ["", "inner"]),
        (0, 1, ["", "inner"]),
    ]
    assert {c.source for c in exps} == {f"{__file__}:{LINE}"}
    modules = {c.identity: c for c in dump.calls if ":" not in c.scope}
    assert [modules[c.parent].scope for c in exps] == ["inner", "inner"]
    assert all(modules[c.parent].enter < c.enter < c.exit < modules[c.parent].exit for c in exps)
    first = [r for r in tensors(dump, Role.OUTPUT, "aten.exp.default") if r.key.call == 0]
    assert np.array_equal(dump.values(first[0].key), x.exp().numpy())
    given = [r for r in tensors(dump, Role.INPUT, "aten.exp.default") if r.key.call == 0]
    assert np.array_equal(dump.values(given[0].key), x.numpy())


def test_producers_lead_through_views(record):
    model = Outer()
    dump = record(model, lambda recorder: model(torch.randn(2, 3)), sources=("operators",))
    calls = {c.identity: c for c in operators(dump)}
    second = [c for c in calls.values() if c.kind == "aten.exp.default"][1]
    assert second.modes["producers"]["args.0"].endswith(":")
    producer = calls[int(second.modes["producers"]["args.0"].partition(":")[0])]
    assert producer.kind == "aten.mul.Tensor"  # not the transpositions between
    views = [c for c in calls.values() if not c.modes["computes"]]
    assert {c.kind for c in views} >= {"aten.t.default"}
    assert not tensors(dump, Role.INPUT, "aten.t.default")


def test_backward_operators_belong_to_the_call_whose_operator_made_the_node(record):
    model, x = Outer(), torch.randn(2, 3, requires_grad=True)
    dump = record(model, lambda recorder: model(x).sum().backward(), sources=("operators",))
    backward = operators(dump, phase="backward")
    sines = [c for c in backward if c.kind == "aten.sin.default"]  # cos in the root's own forward
    assert [(c.scope, c.modes["stack"]) for c in sines] == [(OPERATOR_SCOPE, [""])]
    products = [c for c in backward if c.scope == OPERATOR_SCOPE + "inner" and c.kind == "aten.mul.Tensor"]
    assert sorted(c.modes["module_call"] for c in products) == [0, 0, 0, 1, 1, 1]
    assert {c.source for c in products} == {f"{__file__}:{LINE}"}


def test_what_an_operator_writes_into_is_an_output_and_its_input_is_as_before(record):
    class Writer(nn.Module):
        def forward(self, x, out):
            x.mul_(3)
            torch.add(x, 1, out=out)
            return x

    model, x, out = Writer(), torch.ones(3), torch.zeros(3)
    dump = record(model, lambda recorder: model(x, out), sources=("operators",))
    before, after = tensors(dump, Role.INPUT, "aten.mul_.Tensor"), tensors(dump, Role.OUTPUT, "aten.mul_.Tensor")
    assert dump.values(before[0].key).tolist() == [1, 1, 1]
    assert dump.values(after[0].key).tolist() == [3, 3, 3]
    added = tensors(dump, Role.OUTPUT, "aten.add.out")
    assert [dump.values(r.key).tolist() for r in added] == [[4, 4, 4]]


def test_uninitialised_memory_is_nobodys_result(record):
    class Model(nn.Module):
        def forward(self, x):
            return torch.empty_like(x).copy_(x) + x.new_empty(3).fill_(1) + torch.empty(3).zero_()

    model = Model()
    dump = record(model, lambda recorder: model(torch.ones(3)), sources=("operators",))
    assert {"aten.empty_like.default", "aten.empty.memory_format"} <= {c.kind for c in operators(dump)}
    assert not [r for r in dump.records if "empty" in r.key.op]


def test_optimizer_operators_have_their_phase(record):
    model = Outer()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, foreach=False)

    def body(recorder):
        with recorder.step():
            model(torch.randn(2, 3)).sum().backward()
            optimizer.step()

    dump = record(model, body, sources=("operators",), optimizer=optimizer)
    steps = operators(dump, phase="step")
    assert any(c.kind == "aten.add_.Tensor" for c in steps)
    assert all(c.kind != "aten.cos.default" for c in steps)


@pytest.mark.parametrize("reentrant", [True, False])
def test_recomputed_operators_are_told_apart(record, reentrant):
    class Checked(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = Inner()

        def forward(self, x):
            return checkpoint(self.inner, x, use_reentrant=reentrant)

    model, x = Checked(), torch.randn(2, 3, requires_grad=True)
    dump = record(model, lambda recorder: model(x).sum().backward(), sources=("operators",))
    exps = [(c.pass_, c.modes["phase"]) for c in operators(dump) if c.kind == "aten.exp.default"]
    assert exps == [(Pass.FIRST, "forward"), (Pass.RECOMPUTE, "forward")]


def test_select_and_steps_hold_for_operators(record):
    model = Outer()

    def body(recorder):
        for _ in range(3):
            with recorder.step():
                model(torch.randn(2, 3))

    dump = record(model, body, sources=("operators",), select="inner", steps=[1])
    assert {c.step for c in dump.calls} == {1}
    assert {r.key.scope for r in dump.records if r.key.source == Source.ATEN} == {"inner"}


def test_everything_at_once_changes_nothing(kind, run_training, sink):
    plain, _, _ = run_training(kind)
    watched, _, _ = run_training(
        kind, lambda model, optimizer: capture(model, None, sink=sink, optimizer=optimizer, sources=ALL)
    )
    # under any dispatch mode torch itself reshapes through `view`: the same view by another name in the graph
    assert str(watched).replace("'ViewBackward0'", "'ReshapeAliasBackward0'") == str(plain).replace(
        "'ViewBackward0'", "'ReshapeAliasBackward0'"
    )
    dump = sink.dump()
    assert not [note for note in dump.notes if "not recorded" in note]
    keys = [r.key for r in dump.records]
    assert len(set(keys)) == len(keys) == len(sink._entries)
    assert {Source.ATEN, Source.FUNCTION} <= {key.source for key in keys}


def test_modes_of_the_users_own_still_see_what_they_would(sink):
    class Counting(TorchDispatchMode):
        def __init__(self):
            super().__init__()
            self.names = []

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if func is not torch.ops.aten.detach.default:  # torch 2.1 adds some wherever two modes are nested
                self.names.append(str(func))
            return func(*args, **(kwargs or {}))

    model, x = Outer(), torch.randn(2, 3, requires_grad=True)

    def count():
        model.zero_grad()
        x.grad = None
        with Counting() as counting:
            model(x).sum().backward()
        return counting.names

    plain = count()
    with capture(model, None, sink=sink, sources=ALL):
        inside = count()
    assert inside == plain
    model.zero_grad()
    x.grad = None
    with Counting() as counting, capture(model, None, sink=sink, sources=ALL):
        model(x).sum().backward()
    assert counting.names == plain


def test_a_mode_left_open_at_the_end_is_not_closed_in_its_stead(record):
    class Passing(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {}))

    model, passing = Outer(), Passing()
    dump = record(model, lambda recorder: (model(torch.randn(2, 3)), passing.__enter__()), sources=("operators",))
    from torch.utils._python_dispatch import _get_current_dispatch_mode

    assert _get_current_dispatch_mode() is passing
    passing.__exit__(None, None, None)
    tap = _get_current_dispatch_mode()
    assert tap is not None
    model(torch.randn(2, 3))  # the tap that could not be removed does nothing
    tap.__exit__(None, None, None)
    assert any("still open" in note for note in dump.notes)


def test_an_operator_that_raises_is_a_call_with_its_error(record):
    class Wrong(nn.Module):
        def forward(self, x):
            return x @ torch.ones(5)

    def body(recorder):
        with pytest.raises(RuntimeError):
            model(torch.ones(3))

    model = Wrong()
    dump = record(model, body, sources=("operators",))
    assert any(c.error.startswith("RuntimeError") for c in operators(dump))


def test_lowered_dtypes_are_counted_with_their_line(record):
    library = torch.library.Library("pa_test_demotion", "DEF")
    library.define("halve(Tensor x) -> Tensor")
    library.impl("halve", lambda x: (x / 2).bfloat16(), "CompositeExplicitAutograd")

    class Model(nn.Module):
        def forward(self, x):
            return torch.ops.pa_test_demotion.halve(x) + torch.ops.pa_test_demotion.halve(x.to(torch.bfloat16))

    model = Model()
    line = inspect.getsourcelines(Model.forward)[1] + 1
    dump = record(model, lambda recorder: [model(torch.ones(2)) for _ in range(3)], sources=("operators",))
    lowered = [note for note in dump.notes if note.startswith("dtype lowered")]
    assert lowered == [
        f"dtype lowered: pa_test_demotion.halve.default turned float32 to bfloat16 at {__file__}:{line} (3 times)"
    ]
