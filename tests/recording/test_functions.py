"""The function-level source, units of the user's own, and explicit points with their gradients."""

from __future__ import annotations

import inspect
import sys
import types

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from precision_align.core.errors import UsageError
from precision_align.core.records import FUNCTION_SCOPE
from precision_align.core.terms import Phase, Role, Source
from precision_align.recording.session import capture
from precision_align.recording.units import register_unit

pytestmark = pytest.mark.live
BASE = ("modules", "gradients", "functions")


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 3))

    def forward(self, x):
        h = F.gelu(F.linear(x, self.weight))
        return F.gelu(h) + x


def of_functions(dump, op="", role=None):
    found = [r for r in dump.records if r.key.source == Source.FUNCTION and op in r.key.op]
    return [r for r in found if role is None or r.key.role == role]


def test_functions_have_values_shares_and_lines(record):
    model, x = Model(), torch.randn(2, 3, requires_grad=True)
    line = inspect.getsourcelines(Model.forward)[1]
    dump = record(model, lambda recorder: model(x).sum().backward(), sources=BASE)
    calls = [c for c in dump.calls if c.scope.startswith(FUNCTION_SCOPE)]
    assert [(c.kind, c.call, c.source) for c in calls] == [
        ("torch.nn.functional.linear", 0, f"{__file__}:{line + 1}"),
        ("torch.nn.functional.gelu", 0, f"{__file__}:{line + 1}"),
        ("torch.nn.functional.gelu", 1, f"{__file__}:{line + 2}"),
    ]
    (share,) = [r for r in of_functions(dump, "linear", Role.GRADIENT) if r.key.path == "input.args.0"]
    h = F.linear(x, model.weight)
    expected = torch.autograd.grad(F.gelu(F.gelu(h)).sum(), h)[0] @ model.weight
    np.testing.assert_allclose(dump.values(share.key), expected.detach().numpy(), rtol=1e-5)
    assert not np.array_equal(dump.values(share.key), x.grad.numpy())  # the skip's part is not this call's
    gelus = [r for r in of_functions(dump, "gelu", Role.GRADIENT) if r.key.path == "output"]
    assert [r.key.ordinal for r in sorted(gelus, key=lambda r: r.order)] == [1, 0]


def test_a_second_backward_pass_through_a_function_is_told_apart(record):
    model, x = Model(), torch.randn(2, 3)

    def body(recorder):
        loss = model(x).sum()
        loss.backward(retain_graph=True)
        (loss * 2).backward()

    dump = record(model, body, sources=BASE)
    paths = {r.key.path for r in of_functions(dump, "linear", Role.GRADIENT)}
    assert paths == {"output", "output~1", "input.args.1", "input.args.1~1"}
    assert len({r.key for r in dump.records}) == len(dump.records)


def test_custom_operators_and_in_place_functions(record):
    library = torch.library.Library("pa_test_functions", "DEF")
    library.define("twice(Tensor x) -> Tensor")
    library.impl("twice", lambda x: x * 2, "CompositeExplicitAutograd")

    class Custom(nn.Module):
        def forward(self, x):
            y = torch.ops.pa_test_functions.twice(x)
            return F.relu(y, inplace=True)

    model, x = Custom(), torch.tensor([1.0, -1.0])
    dump = record(model, lambda recorder: model(x), sources=BASE)
    assert [dump.values(r.key).tolist() for r in of_functions(dump, "twice", Role.OUTPUT)] == [[2, -2]]
    assert [dump.values(r.key).tolist() for r in of_functions(dump, "relu", Role.INPUT)] == [[2, -2]]
    (written,) = of_functions(dump, "relu", Role.OUTPUT)
    assert dump.values(written.key).tolist() == [2, 0]
    assert written.extra["overwrites"] == "input.args.0"


def test_optimizers_are_no_functions(record):
    model = Model()
    optimizer = torch.optim.Adam(model.parameters(), 0.1)

    def body(recorder):
        with recorder.step():
            model(torch.randn(2, 3)).sum().backward()
            before = recorder.num_records
            optimizer.step()
            assert recorder.num_records == before

    record(model, body, sources=BASE, optimizer=optimizer)


class Splat(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, factor):
        ctx.factor = factor
        return x * factor, x.sign()

    @staticmethod
    def backward(ctx, grad, unused):
        return grad * (ctx.factor + 1), None  # wrong on purpose: what it says is what is recorded


class Rasterizer(nn.Module):
    def forward(self, x):
        y, sign = Splat.apply(x, 3)
        return y * sign + x


def test_a_custom_autograd_function_is_a_unit_forward_and_backward(record):
    assert register_unit(Splat) is Splat
    register_unit(Splat)  # again: still one
    model, x = Rasterizer(), torch.tensor([1.0, -2.0], requires_grad=True)
    plain = model(x)
    dump = record(model, lambda recorder: model(x).sum().backward())
    op = f"{__name__}.Splat"
    found = {r.key.path: dump.values(r.key).tolist() for r in of_functions(dump, op, Role.GRADIENT)}
    assert found["output.0"] == [1, -1]
    assert found["input.args.0"] == [4, -4]
    assert [dump.values(r.key).tolist() for r in of_functions(dump, op, Role.OUTPUT)] == [[3, -6], [1, -1]]
    (call,) = [c for c in dump.calls if c.kind == op]
    assert call.scope == FUNCTION_SCOPE
    assert torch.equal(model(x), plain)  # after the session


def test_functions_and_names_can_be_units(record):
    module = types.ModuleType("pa_test_rasterizer")
    exec("def splat(x, *, factor): return x * factor", module.__dict__)
    sys.modules["pa_test_rasterizer"] = module
    register_unit("pa_test_rasterizer:splat", name="splat")
    register_unit("pa_test_rasterizer:splat", name="splat")

    @register_unit
    def shift(x):
        return x + 1

    class User(nn.Module):
        def forward(self, x):
            return shift(module.splat(x, factor=2))

    model = User()
    dump = record(model, lambda recorder: model(torch.ones(2)))
    assert [(r.key.op, dump.values(r.key).tolist()) for r in of_functions(dump, role=Role.OUTPUT)] == [
        ("splat", [2, 2]),
        (f"{__name__}.{shift.__qualname__}", [3, 3]),
    ]
    del sys.modules["pa_test_rasterizer"]


def test_a_unit_that_raises_keeps_its_error_and_its_traceback(record):
    @register_unit
    def broken(x):
        raise ValueError("no such splat")

    class User(nn.Module):
        def forward(self, x):
            return broken(x)

    def body(recorder):
        with pytest.raises(ValueError, match="no such splat"):
            model(torch.ones(1))

    model = User()
    dump = record(model, body)
    assert [c.error for c in dump.calls if c.scope.startswith(FUNCTION_SCOPE)] == ["ValueError: no such splat"]


@pytest.mark.parametrize("target", [3, nn.Linear(1, 1), nn.Linear, "nowhere", "no_such_module:f", "torch:no_such"])
def test_what_is_no_unit_is_refused(target):
    with pytest.raises(UsageError):
        register_unit(target)


def test_of_two_sessions_the_one_whose_module_runs_hears_a_unit(new_sink):
    @register_unit
    def shift(x):
        return x + 1

    class User(nn.Module):
        def forward(self, x):
            return shift(x)

    first, second, one, two = User(), User(), new_sink(), new_sink()
    with capture(first, None, sink=one), capture(second, None, sink=two):
        first(torch.ones(1))
        second(torch.zeros(1))
    for dump, value in ((one.dump(), 2), (two.dump(), 1)):
        assert [dump.values(r.key).tolist() for r in of_functions(dump, "shift", Role.OUTPUT)] == [[value]]


def test_saved_points_have_their_gradients(record):
    model = nn.Linear(2, 2)

    def body(recorder):
        for _ in range(2):
            with recorder.step():
                x = torch.ones(2, requires_grad=True)
                h = x * 3
                recorder.save("x", x)
                recorder.save("h", h)
                recorder.save("none", torch.ones(1))
                (model(h) * 2 + h * 5).sum().backward()

    dump = record(model, body)
    points = [r for r in dump.records if r.key.source == Source.POINT and r.key.path in ("x", "h", "none")]
    assert [(r.key.step, r.key.path, r.key.phase) for r in points] == [
        (step, path, phase)
        for step in range(2)
        for phase, paths in ((Phase.FORWARD, ("x", "h", "none")), (Phase.BACKWARD, ("h", "x")))
        for path in paths
    ]
    gradient = {r.key.path: dump.values(r.key) for r in points if r.key.phase == Phase.BACKWARD and r.key.step == 0}
    expected = (model.weight.detach().sum(0) * 2 + 5).numpy()
    np.testing.assert_allclose(gradient["h"], expected, rtol=1e-6)
    np.testing.assert_allclose(gradient["x"], expected * 3, rtol=1e-6)


def test_saving_a_parameter_leaves_no_hook_behind(record):
    model = nn.Linear(2, 1)

    def body(recorder):
        for _ in range(2):
            with recorder.step():
                recorder.save("weight", model.weight)
                model(torch.ones(1, 2)).sum().backward()

    dump = record(model, body)
    gradients = [r for r in dump.records if r.key.path == "weight" and r.key.source == Source.POINT]
    assert [r.key.phase for r in gradients] == [Phase.FORWARD, Phase.BACKWARD] * 2
    assert not model.weight._backward_hooks
