"""The replay module: loaded with the candidate's values, or a reason why not."""

from __future__ import annotations

import copy
import threading

import pytest
import torch
from torch import nn

from precision_align.core.terms import Status

X = torch.randn(16, 8, generator=torch.Generator().manual_seed(0))


def run(module):
    return module(X)


class Mlp(nn.Module):
    def __init__(self, hidden=8):
        super().__init__()
        torch.manual_seed(0)
        self.up, self.down = nn.Linear(8, hidden), nn.Linear(hidden, 8)

    def forward(self, x):
        return self.down(torch.tanh(self.up(x))) + x


def outputs(rows, scope):
    return [row for row in rows if row.scope == scope and row.role == "output" and row.phase == "forward"]


def test_the_candidates_own_parameters_are_used(compare):
    candidate = Mlp()
    with torch.no_grad():
        candidate.up.weight.mul_(1.5)
    found = compare(Mlp(), candidate, run)
    assert (found.first.scope, found.first.site) == ("up", "parameters")
    assert {row.status for row in outputs(found.records, "up")} <= {Status.PASS, Status.PROPAGATED}


def test_a_factory_of_the_replay_module(compare, patch):
    candidate = Mlp()
    patch(candidate.down, lambda y: y * 1.01)
    found = compare(Mlp(), candidate, run, replay=Mlp)
    assert (found.first.scope, found.first.site) == ("down", "module")


def judge_with(root, judge, patched=None):
    model = Mlp()
    return judge(patched or model, run, replay=root)


def test_a_parameter_of_another_shape_is_named(judge):
    rows = judge_with(Mlp(hidden=6), judge)
    for scope in ("up", "down"):
        (row,) = outputs(rows, scope)
        assert row.status == Status.INCONCLUSIVE
        assert "shape" in row.note


def test_a_parameter_that_the_candidate_lacks_is_named(judge):
    root = Mlp()
    root.up.register_parameter("extra", nn.Parameter(torch.ones(3)))
    rows = judge_with(root, judge)
    (row,) = outputs(rows, "up")
    assert (row.status, "extra" in row.note) == (Status.INCONCLUSIVE, True)
    assert [row.status for row in outputs(rows, "down")] == [Status.PASS]
    assert [row.status for row in outputs(rows, "")] == [Status.PASS]


def test_a_module_that_the_reference_lacks_is_named(judge):
    class Other(nn.Module):
        def __init__(self):
            super().__init__()
            self.up = nn.Linear(8, 8)

        def forward(self, x):
            return self.up(x)

    (row,) = outputs(judge_with(Other(), judge), "down")
    assert (row.status, "down" in row.note) == (Status.INCONCLUSIVE, True)


class Locked(Mlp):
    def __init__(self):
        super().__init__()
        self.lock = threading.Lock()


def test_a_module_that_cannot_be_copied_is_inconclusive(judge):
    rows = [row for row in judge_with(Locked(), judge) if row.role == "output"]
    assert {row.status for row in rows} == {Status.INCONCLUSIVE}
    assert all("copied" in row.note for row in rows)


class Keeping(Mlp):
    """Keeps its activations, as models do for inspection: tensors with a graph, which torch refuses to copy."""

    def forward(self, x):
        self.kept = {"hidden": [self.up(x)]}
        return self.down(self.kept["hidden"][0]) * 2


def test_kept_activations_are_no_obstacle(judge):
    root = Keeping()
    root(X)
    rows = judge(Keeping(), run, replay=root)
    assert {row.status for row in rows if row.role == "output"} == {Status.PASS}
    assert root.kept["hidden"][0].grad_fn is not None


def test_the_replay_module_is_left_as_it_was(judge):
    root = Mlp().eval()
    before = copy.deepcopy(root.state_dict())
    judge(Mlp(), run, replay=root)
    assert all(torch.equal(before[name], value) for name, value in root.state_dict().items())
    assert not root.training
    assert all(parameter.dtype == torch.float32 for parameter in root.parameters())
    assert "forward" not in vars(root)


def test_an_uninitialised_lazy_module_is_named(judge):
    class Lazy(Mlp):
        def __init__(self):
            super().__init__()
            self.up = nn.LazyLinear(8)

    rows = judge_with(Lazy(), judge)
    assert [row.status for row in outputs(rows, "up")] == [Status.INCONCLUSIVE]


class Tied(nn.Module):
    def __init__(self, tie_first="emb"):
        super().__init__()
        torch.manual_seed(0)
        self.emb, self.head = nn.Embedding(11, 8), nn.Linear(8, 11, bias=False)
        if tie_first == "emb":
            self.head.weight = self.emb.weight
        else:
            self.emb.weight = self.head.weight

    def forward(self, ids):
        return self.head(self.emb(ids))


def test_tied_parameters_stand_under_either_name(judge):
    ids = torch.arange(6)[None]
    for own in ("emb", "head"):
        for other in ("emb", "head"):
            rows = judge(Tied(own), lambda module: module(ids), replay=Tied(other))
            assert {row.status for row in rows if row.role == "output"} == {Status.PASS}, (own, other)


def test_a_reference_that_is_not_tied(judge):
    class Loose(Tied):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(8, 11, bias=False)

    rows = judge(Tied(), lambda module: module(torch.arange(6)[None]), replay=Loose())
    assert {row.status for row in rows if row.role == "output"} == {Status.PASS}


@pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated")
@pytest.mark.parametrize("kind", ["parametrization", "hook"])
def test_weight_norm(judge, patch, kind):
    apply = nn.utils.parametrizations.weight_norm if kind == "parametrization" else nn.utils.weight_norm

    def build():
        model = Mlp()
        apply(model.up)
        return model

    rows = judge(build(), run, replay=build())
    assert {row.status for row in outputs(rows, "up")} == {Status.PASS}
    candidate = build()
    patch(candidate.up, lambda y: y * 1.001)
    assert [row.status for row in outputs(judge(candidate, run, replay=build()), "up")] == [Status.FAIL]


def test_running_statistics_of_the_recorded_step(judge):
    """Each call starts from the buffers it started from, whatever the replay module's own are."""

    class Normed(nn.Module):
        def __init__(self):
            super().__init__()
            self.bn = nn.BatchNorm1d(8)

        def forward(self, x):
            return self.bn(self.bn(x) * 3)

    used = Normed()
    for _ in range(5):
        used(X * 7)
    rows = [row for row in judge(Normed(), run, replay=used) if row.role in ("output", "buffer") and row.scope == "bn"]
    assert len(rows) >= 8
    assert {row.status for row in rows} == {Status.PASS}
