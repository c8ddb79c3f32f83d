"""Optimizer steps: torch's own, custom ones, schedulers, closures."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from precision_align.core.trees import rebuild

pytestmark = pytest.mark.live


def step_records(dump, role):
    return {
        (r.key.step, r.key.scope, r.key.call, r.key.ordinal, r.key.path): dump.values(r.key)
        for r in dump.records
        if r.key.source == "optimizer" and r.key.role == role
    }


def step_calls(dump):
    plain = (lambda name: None, lambda kind, value: value)
    return [(c, rebuild(c.arguments, {}, *plain)) for c in dump.calls if c.scope.startswith("optimizer:")]


def train(model, optimizer, recorder, steps=2):
    for _ in range(steps):
        with recorder.step():
            optimizer.zero_grad()
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()


def test_gradients_parameters_and_state(record):
    model = nn.Sequential(nn.Linear(2, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    before = model[0].weight.detach().clone().numpy()
    dump = record(model, lambda recorder: train(model, optimizer, recorder), optimizer=optimizer)
    assert step_records(dump, "gradient")[1, "0", 0, 0, "weight"].tolist() == [[1, 1], [1, 1]]
    after = step_records(dump, "parameter")
    np.testing.assert_array_equal(after[1, "0", 0, 0, "weight"], model[0].weight.detach().numpy())
    starts = [r for r in dump.records if r.key.source == "parameters" and r.key.path == "weight"]
    np.testing.assert_array_equal(dump.values(starts[0].key), before)
    np.testing.assert_array_equal(dump.values(starts[1].key), after[0, "0", 0, 0, "weight"])
    state = step_records(dump, "state")
    assert (0, "0", 0, 0, "before.exp_avg.weight") not in state
    np.testing.assert_array_equal(
        state[0, "0", 0, 0, "after.exp_avg.weight"], state[1, "0", 0, 0, "before.exp_avg.weight"]
    )
    assert state[1, "0", 0, 0, "after.step.bias"] == 2
    (call, arguments), _ = step_calls(dump)
    assert (call.scope, call.kind, call.leaf, call.parent) == ("optimizer:0", "torch.optim.adam.Adam", True, -1)
    (group,) = arguments["groups"]
    assert group["lr"] == 0.1
    assert group["betas"] == [0.9, 0.999]
    assert group["parameters"] == ["0.weight", "0.bias"]
    assert dump.info.optimizer["optimizer:0"]["groups"][0]["lr"] == 0.1
    # totals come from the optimizer's own view: not recorded twice
    assert not [r for r in dump.records if r.key.source == "parameters" and r.key.role == "gradient"]


def test_a_step_without_update_still_has_its_gradients(record):
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def body(recorder):
        with recorder.step():
            model(torch.ones(1, 2)).sum().backward()
        with recorder.step():
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()

    dump = record(model, body, optimizer=optimizer)
    totals = [r.key.step for r in dump.records if r.key.source == "parameters" and r.key.role == "gradient"]
    assert totals == [0, 0]
    assert {key[0] for key in step_records(dump, "gradient")} == {1}


@pytest.mark.parametrize("when", ["before", "inside"])
def test_learning_rate_schedules(record, when):
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), 1.0)
    make = lambda: torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)  # noqa: E731
    schedule = make() if when == "before" else None
    kept = optimizer.step

    def body(recorder):
        scheduler = schedule or make()
        for _ in range(3):
            with recorder.step():
                model(torch.ones(1, 2)).sum().backward()
                optimizer.step()
                scheduler.step()

    dump = record(model, body, optimizer=optimizer)
    assert [arguments["groups"][0]["lr"] for _, arguments in step_calls(dump)] == [1.0, 0.5, 0.25]
    if when == "before":
        assert optimizer.step == kept
    dump = record(model, lambda recorder: (model(torch.ones(1, 2)), optimizer.step()))
    assert len(step_records(dump, "parameter")) == 0


class Momentum:
    """Not a torch optimizer; its state hangs on the parameters in a dict of its own."""

    def __init__(self, parameters):
        self.mine = list(parameters)
        self.state = {p: {"speed": torch.zeros_like(p), "count": 0} for p in self.mine}

    @torch.no_grad()
    def step(self):
        for p in self.mine:
            self.state[p]["speed"] += p.grad
            self.state[p]["count"] += 1
            p.data.sub_(0.1 * self.state[p]["speed"])  # through .data: counts as no new version
        return "stepped"


def test_a_custom_optimizer(record):
    model = nn.Linear(2, 1, bias=False)
    optimizer = Momentum(model.parameters())
    results = []

    def body(recorder):
        for _ in range(2):
            with recorder.step():
                model(torch.ones(1, 2)).sum().backward()
                results.append(optimizer.step())

    before = model.weight.detach().clone()
    dump = record(model, body, optimizer=optimizer)
    assert results == ["stepped", "stepped"]
    after = step_records(dump, "parameter")
    np.testing.assert_array_equal(after[0, "", 0, 0, "weight"], (before - 0.1).numpy())
    np.testing.assert_array_equal(after[1, "", 0, 0, "weight"], model.weight.detach().numpy())
    assert step_records(dump, "state")[1, "", 0, 0, "after.speed.weight"].tolist() == [[3, 3]]
    assert [arguments["state"] for _, arguments in step_calls(dump)] == [
        {"weight": {"count": 0}},
        {"weight": {"count": 1}},
    ]
    assert "step" not in vars(optimizer)


class Slotted:
    __slots__ = ("parameters",)

    def __init__(self, parameters):
        self.parameters = list(parameters)

    @torch.no_grad()
    def step(self):
        for p in self.parameters:
            p -= 0.1 * p.grad


def test_an_optimizer_that_cannot_be_wrapped_is_read_at_the_steps_end(record):
    model = nn.Linear(2, 1)
    optimizer = Slotted(model.parameters())

    def body(recorder):
        with recorder.step():
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()

    dump = record(model, body, optimizer=optimizer)
    np.testing.assert_array_equal(step_records(dump, "parameter")[0, "", 0, 0, "weight"], model.weight.detach().numpy())
    assert any("takes no attributes" in note for note in dump.notes)


def test_a_closure_computes_its_gradients_inside(record):
    model = nn.Linear(2, 1)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2)

    def body(recorder):
        with recorder.step():

            def closure():
                optimizer.zero_grad()
                loss = model(torch.ones(1, 2)).pow(2).sum()
                loss.backward()
                return loss

            optimizer.step(closure)

    dump = record(model, body, optimizer=optimizer)
    assert (0, "", 0, 0, "weight") in step_records(dump, "gradient")
    assert len(step_calls(dump)) == 1


def test_two_optimizers_each_with_its_own_parameters(record):
    model = nn.ModuleDict({"generator": nn.Linear(2, 2), "critic": nn.Linear(2, 1)})
    optimizers = {name: torch.optim.SGD(part.parameters(), 0.1) for name, part in model.items()}

    def body(recorder):
        with recorder.step():
            model["critic"](model["generator"](torch.ones(1, 2))).sum().backward()
            for optimizer in optimizers.values():
                optimizer.step()
                optimizer.step()

    dump = record(model, body, optimizer=optimizers)
    assert {(key[1], key[2], key[3]) for key in step_records(dump, "parameter")} == {
        (scope, call, index) for index, scope in enumerate(model) for call in (0, 1)
    }
    assert [c.scope for c, _ in step_calls(dump)] == ["optimizer:0"] * 2 + ["optimizer:1"] * 2


def test_a_step_that_raises(record):
    class Broken(torch.optim.SGD):
        def step(self, closure=None):
            raise RuntimeError("no step today")

    model = nn.Linear(2, 1)
    optimizer = Broken(model.parameters(), 0.1)

    def body(recorder):
        with recorder.step():
            model(torch.ones(1, 2)).sum().backward()
            with pytest.raises(RuntimeError, match="no step today"):
                optimizer.step()

    ((call, _),) = step_calls(record(model, body, optimizer=optimizer))
    assert call.error == "RuntimeError: no step today"


def test_parameters_that_are_not_the_models_are_mentioned(record):
    model = nn.Linear(2, 1)
    master = [p.detach().double().requires_grad_() for p in model.parameters()]
    optimizer = torch.optim.SGD([{"params": model.parameters()}, {"params": master}], 0.1)
    dump = record(model, lambda recorder: train(model, optimizer, recorder, 1), optimizer=optimizer)
    assert any("holds 2 tensors" in note for note in dump.notes)
