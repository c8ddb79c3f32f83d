"""Gradients of calls: right shares, right totals, in every shape of graph."""

from __future__ import annotations

from collections import Counter, defaultdict

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

pytestmark = pytest.mark.live


def gradients(dump, path=None):
    """{(scope, call, path, ordinal): (values, record)} of a dump's call gradients."""
    found = {}
    for record in dump.records:
        key = record.key
        if key.source == "module" and key.role == "gradient" and (path is None or key.path == path):
            found[key.scope, key.call, key.path, key.ordinal] = (dump.values(key), record)
    return found


def alias_shares(kind, loss_of):
    """Input shares by the book: every module gets an alias of each input, and the alias is hooked."""
    torch.manual_seed(7)
    model, calls, found = kind.build(), Counter(), {}
    batch = kind.batch()

    def hook(name):
        def alias_inputs(module, args, kwargs):
            if torch._C._current_graph_task_id() != -1:
                return None
            call = calls[name]
            calls[name] += 1

            def alias(path, value):
                if not (isinstance(value, torch.Tensor) and value.requires_grad):
                    return value
                twin = value.view_as(value)
                twin.register_hook(lambda gradient: found.__setitem__((name, call, path), gradient.clone()))
                return twin

            return (
                tuple(alias(f"input.args.{index}", value) for index, value in enumerate(args)),
                {key: alias(f"input.kwargs.{key}", value) for key, value in kwargs.items()},
            )

        return alias_inputs

    for name, module in model.named_modules():
        module.register_forward_pre_hook(hook(name), with_kwargs=True)
    loss_of(model(*batch)).backward()
    return found


NOT_IN_PLACE = ["outer skips", "gpt", "gpt not reentrant", "lstm", "experts", "custom"]


@pytest.mark.parametrize("name", NOT_IN_PLACE)
def test_input_shares_equal_those_of_aliased_inputs(kinds, name, record, loss_of):
    expected = alias_shares(kinds[name], loss_of)
    torch.manual_seed(7)
    model = kinds[name].build()
    batch = kinds[name].batch()
    dump = record(model, lambda recorder: loss_of(model(*batch)).backward())
    found = {key[:3]: value for key, value in gradients(dump).items() if key[2].startswith("input")}
    merged = dict(expected)
    for (scope, call, path), (_, entry) in found.items():
        for other in entry.extra.get("also", []):
            merged[scope, call, path] = merged[scope, call, path] + merged.pop((scope, call, other))
    assert found.keys() == merged.keys()
    for key, (values, entry) in found.items():
        assert entry.extra["share"] is True
        np.testing.assert_allclose(values, merged[key].numpy(), rtol=1e-4, atol=1e-5, err_msg=str(key))


def test_parameter_shares_sum_to_the_totals(kind, record, loss_of):
    torch.manual_seed(7)
    model = kind.build()
    batch = kind.batch()
    dump = record(model, lambda recorder: loss_of(model(*batch)).backward())
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    sums = defaultdict(float)
    for (scope, _, path, _), (values, _) in gradients(dump).items():
        if path.startswith("parameter."):
            owner = model.get_submodule(scope)
            sums[names[id(getattr(owner, path.partition(".")[2]))]] += values.astype(np.float64)
    totals = {name: p.grad.double().numpy() for name, p in model.named_parameters() if p.grad is not None}
    assert sums.keys() == totals.keys()
    recorded = {
        f"{key.scope}.{key.path}".lstrip("."): dump.values(key)
        for key in (record.key for record in dump.records)
        if key.source == "parameters" and key.role == "gradient"
    }
    assert recorded.keys() == totals.keys()
    rtol, atol = (2e-2, 1e-2) if next(model.parameters()).dtype == torch.bfloat16 else (1e-4, 1e-5)
    for name, total in totals.items():
        np.testing.assert_allclose(sums[name], total, rtol=rtol, atol=atol, err_msg=name)
        np.testing.assert_array_equal(recorded[name].astype(np.float64), total)


@pytest.mark.parametrize("mode", ["reentrant", "not reentrant"])
def test_recomputed_gradients_belong_to_the_first_calls(kinds, mode, record, loss_of):
    def run(name):
        torch.manual_seed(7)
        model = kinds[name].build()
        for module in model.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0
        batch = kinds[name].batch()
        return gradients(record(model, lambda recorder: loss_of(model(*batch)).backward()))

    plain, recomputed = run("gpt"), run(f"gpt {mode}")
    assert plain.keys() == recomputed.keys()
    for key, (values, _) in plain.items():
        np.testing.assert_array_equal(values, recomputed[key][0], err_msg=str(key))
        inside = key[0].startswith("blocks.")
        assert recomputed[key][1].extra.get("recomputed", False) is (inside and mode == "reentrant")


def test_a_checkpointed_function_over_shared_modules(record):
    first, second = nn.Linear(3, 3), nn.Linear(3, 3)

    class Net(nn.Module):
        def __init__(self, recompute):
            super().__init__()
            self.a, self.b, self.recompute = first, second, recompute

        def forward(self, x):
            def part(h):
                return self.b(self.a(torch.tanh(self.a(h))))

            for _ in range(2):
                x = checkpoint(part, x, use_reentrant=True) if self.recompute else part(x)
            return x

    x = torch.randn(2, 3, requires_grad=True)
    nets = [Net(recompute=False), Net(recompute=True)]
    plain, recomputed = (gradients(record(net, lambda _, net=net: net(x).pow(2).sum().backward())) for net in nets)
    assert len(plain) > 12
    assert plain.keys() == recomputed.keys()
    for key, (values, _) in plain.items():
        np.testing.assert_array_equal(values, recomputed[key][0], err_msg=str(key))


def test_each_backward_pass_is_recorded_under_its_own_number(record):
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh())
    x = torch.randn(2, 3, requires_grad=True)

    def body(recorder):
        loss = model(x * 2).sum()
        loss.backward(retain_graph=True)
        (loss * 3).backward()

    found = gradients(record(model, body))
    for scope, path in (("0", "parameter.weight"), ("1", "input.args.0"), ("", "output")):
        first, second = found[scope, 0, path, 0][0], found[scope, 0, path, 1][0]
        np.testing.assert_allclose(second, 3 * first, rtol=1e-6)


def test_a_pass_through_one_output_only_is_recorded_when_it_ends(record):
    class Two(nn.Module):
        def forward(self, x):
            return x * 2, x * 3

    model = Two()
    x = torch.ones(2, requires_grad=True)

    def body(recorder):
        first, second = model(x)
        first.sum().backward(retain_graph=True)
        second.sum().backward()

    found = gradients(record(model, body))
    assert found["", 0, "input.args.0", 0][0].tolist() == [2, 2]
    assert found["", 0, "input.args.0", 1][0].tolist() == [3, 3]
    assert found["", 0, "output.0", 0][0].tolist() == [1, 1]
    assert found["", 0, "output.1", 0][0].tolist() == [1, 1]


def test_uses_outside_the_module_do_not_count(record):
    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Tanh()

        def forward(self, x):
            h = x * 1
            return h * 5 + self.inner(h) + self.inner(h) * h

    x = torch.zeros(3, requires_grad=True)
    found = gradients(record(model := Outer(), lambda recorder: model(x).sum().backward()))
    assert found["inner", 0, "input.args.0", 0][0].tolist() == [1, 1, 1]
    assert found["inner", 1, "input.args.0", 0][0].tolist() == [0, 0, 0]
    assert found["", 0, "input.args.0", 0][0].tolist() == [6, 6, 6]


def test_a_cached_consumer_made_before_the_call_does_not_count(record):
    class Reader(nn.Module):
        def forward(self, x):
            return x * 2 + self.cached

    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.reader = Reader()

        def forward(self, x):
            h = x.exp()
            self.reader.cached = h * 7
            return self.reader(h)

    x = torch.zeros(2, requires_grad=True)
    found = gradients(record(model := Outer(), lambda recorder: model(x).sum().backward()))
    assert found["reader", 0, "input.args.0", 0][0].tolist() == [2, 2]
    assert found["", 0, "input.args.0", 0][0].tolist() == [9, 9]


def test_a_returned_input_is_marked_and_its_total_never_taken_for_a_share(record):
    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.same = nn.Identity()

        def forward(self, x):
            h = x * 1
            return self.same(h) + h * 4

    x = torch.zeros(2, requires_grad=True)
    dump = record(model := Outer(), lambda recorder: model(x).sum().backward())
    found = gradients(dump)
    values, entry = found["same", 0, "output", 0]
    assert values.tolist() == [5, 5]
    assert dict(entry.extra) == {"same_as": "input.args.0", "shared": True}
    assert ("same", 0, "input.args.0", 0) not in found
    outputs = [record for record in dump.records if record.key.scope == "same" and record.key.role == "output"]
    assert [dict(record.extra) for record in outputs] == [{"same_as": "input.args.0"}]


def test_an_output_that_is_a_childs_output_says_so(record):
    model = nn.Sequential(nn.Sequential(nn.Linear(2, 2)))
    dump = record(model, lambda recorder: model(torch.ones(1, 2)).sum().backward())
    seen = {r.key.scope: r.extra.get("same_as") for r in dump.records if r.key.role == "output"}
    assert seen == {"0.0": None, "0": "0.0@0:output", "": "0@0:output"}
    marks = {key[0]: entry.extra.get("same_as") for key, (_, entry) in gradients(dump, "output").items()}
    assert marks == seen


def test_an_in_place_activation_is_no_alias_of_its_input(record):
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU(inplace=True))
    torch.manual_seed(0)
    dump = record(model, lambda recorder: model(torch.randn(4, 3)).sum().backward())
    outputs = {r.key.scope: r for r in dump.records if r.key.role == "output"}
    assert outputs["1"].extra == {"overwrites": "input.args.0"}
    assert dump.values(outputs["0"].key).min() < 0 <= dump.values(outputs["1"].key).min()
    found = gradients(dump)
    np.testing.assert_array_equal(found["1", 0, "input.args.0", 0][0], found["0", 0, "output", 0][0])


@pytest.mark.parametrize("write", ["data", "numpy"])
def test_a_write_that_counts_as_no_new_version_is_no_alias_either(record, write):
    class Silent(nn.Module):
        def forward(self, x):
            if write == "data":
                x.data.mul_(2)
            else:
                x.detach().numpy()[:] *= 2
            return x

    model = nn.Sequential(nn.Identity(), Silent())
    dump = record(model, lambda recorder: model(torch.ones(3)))
    outputs = {r.key.scope: r for r in dump.records if r.key.role == "output"}
    assert outputs["1"].extra == {"overwrites": "input.args.0"}
    assert dump.values(outputs["1"].key).tolist() == [2, 2, 2]
    assert dump.values(outputs["0"].key).tolist() == [1, 1, 1]


def test_autocast_shares_one_cast_between_calls_but_each_call_has_its_share(record):
    model = nn.Module()
    model.fc = nn.Linear(4, 4, bias=False)
    x = torch.randn(3, 4)

    def body(recorder):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            first = model.fc(x)
            (first.float().sum() + 2 * model.fc(first).float().sum()).backward()

    found = gradients(record(model, body), "parameter.weight")
    assert [key[1] for key in sorted(found)] == [0, 1]
    assert {entry.dtype for _, entry in found.values()} == {"float32"}
    total = sum(values.astype(np.float64) for values, _ in found.values())
    np.testing.assert_allclose(total, model.fc.weight.grad.double().numpy(), rtol=2e-2, atol=2e-2)


def test_a_gradient_penalty_goes_through_the_graph_twice(record):
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))

    def train(step):
        torch.manual_seed(1)
        model.zero_grad()
        x = torch.randn(5, 3, requires_grad=True)
        y = model(x)
        (slope,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        (slope.pow(2).sum() + y.sum()).backward()
        return [p.grad.clone() for p in model.parameters()]

    plain = train(None)
    kept = []
    found = gradients(record(model, lambda recorder: kept.extend(train(recorder))))
    assert all(map(torch.equal, plain, kept))
    assert ("2", 0, "output", 0) in found
    assert ("2", 0, "output", 1) in found


def test_sparse_gradients_are_kept_as_their_parts(record):
    model = nn.Sequential(nn.Embedding(5, 2, sparse=True))
    dump = record(model, lambda recorder: model(torch.tensor([1, 3, 1])).sum().backward())
    paths = {r.key.path: r for r in dump.records if r.key.source == "parameters" and r.key.role == "gradient"}
    assert paths["weight"].reason.startswith("sparse_coo")
    assert dump.values(paths["weight#indices"].key).tolist() == [[1, 3, 1]] or paths["weight#indices"].shape == (1, 2)
    assert dump.values(paths["weight#values"].key).sum() == 6


def test_gradients_that_come_after_their_step_are_noted_not_misfiled(record):
    model = nn.Linear(2, 2)

    def body(recorder):
        with recorder.step():
            loss = model(torch.ones(1, 2)).sum()
        with recorder.step():
            loss.backward()

    dump = record(model, body)
    assert not gradients(dump)
    assert any("after their step" in note for note in dump.notes)
    totals = [r.key for r in dump.records if r.key.source == "parameters" and r.key.role == "gradient"]
    assert {key.step for key in totals} == {1}


def test_an_error_in_the_backward_pass_leaves_nothing_half_done(record):
    class Broken(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, fail):
            ctx.fail = fail
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            if ctx.fail:
                raise RuntimeError("out of paper")
            return gradient, None

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc, self.fail = nn.Linear(2, 2), True

        def forward(self, x):
            h = self.fc(x)
            return h * 2 + Broken.apply(h, self.fail)

    model = Net()

    def body(recorder):
        with pytest.raises(RuntimeError, match="out of paper"):
            model(torch.ones(1, 2)).sum().backward()
        model.fail = False
        model(torch.ones(1, 2)).sum().backward()

    dump = record(model, body)
    weights = [r for r in dump.records if r.key.path == "parameter.weight"]
    assert [r.key.step for r in weights] == [1]
    assert (dump.values(weights[0].key) == 3).all()
