"""Random models: whatever is in the graph, a session changes nothing and its shares add up."""

from __future__ import annotations

import contextlib
from collections import defaultdict

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.checkpoint import checkpoint

from precision_align.recording.nodes import graph_task
from precision_align.recording.session import capture

pytestmark = [
    pytest.mark.live,
    pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad=True:UserWarning"),
]

WIDTH = 4
STEPS = [
    "child", "child again", "in-place relu", "in-place add", "double use", "skip", "detach", "no grad", "chunk",
    "view", "identity", "reentrant", "not reentrant", "own weight", "keyword",
]  # fmt: skip


class Leaf(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.kind, self.weight = kind, nn.Parameter(torch.randn(WIDTH, WIDTH) * 0.5)
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x, scale=None):
        self.count += 1
        y = x @ self.weight
        if self.kind:
            y = y * x + x
        return y if scale is None else y * scale


class Node(nn.Module):
    """Applies a list of steps to its input; children are leaves or nodes."""

    def __init__(self, plan):
        super().__init__()
        self.plan = [(what, index) for index, (what, _) in enumerate(plan)]
        self.weight = nn.Parameter(torch.randn(WIDTH))
        self.parts = nn.ModuleList(Leaf(sub) if isinstance(sub, bool) else Node(sub) for _, sub in plan)
        self.relu, self.same = nn.ReLU(inplace=True), nn.Identity()

    def forward(self, x):
        first, previous = x * 1, None
        x = x * 1.5
        for what, index in self.plan:
            child = self.parts[index]
            x, previous = self.apply_step(what, child, x, first, previous), child
        return x, {"first": first}

    def call(self, child, x):
        result = child(x)
        return result[0] if isinstance(result, tuple) else result

    def apply_step(self, what, child, x, first, previous):
        if what in ("detach", "no grad"):
            with torch.no_grad() if what == "no grad" else contextlib.nullcontext():
                return self.call(child, x.detach()) + x
        if what in ("reentrant", "not reentrant"):
            return checkpoint(self.call, child, x, use_reentrant=what == "reentrant")
        if what == "keyword" and isinstance(child, Leaf):
            return child(x=x, scale=torch.sigmoid(x))
        if what in MIXES:
            return MIXES[what](self, child, x, first, previous or child)
        return self.call(child, x) * self.weight


def call_again(node, child, x, first, previous):
    y = node.call(child, x)
    return y + node.call(previous, y) + x


def add_in_place(node, child, x, first, previous):
    y = node.call(child, x)
    y += x
    return y


def swap_halves(node, child, x, first, previous):
    left, right = x.chunk(2, -1)
    return node.call(child, torch.cat([right, left * left], -1))


MIXES = {
    "child again": call_again,
    "double use": lambda node, child, x, first, previous: call_again(node, child, x, first, child),
    "in-place relu": lambda node, child, x, first, previous: node.relu(x * 1),
    "in-place add": add_in_place,
    "skip": lambda node, child, x, first, previous: torch.tanh(node.call(child, x)) + first * x,
    "chunk": swap_halves,
    "view": lambda node, child, x, first, previous: node.call(child, x.t().contiguous().t()) + x.expand_as(x),
    "identity": lambda node, child, x, first, previous: node.same(x) + node.call(child, node.same(x)),
}


plans = st.recursive(
    st.booleans(),
    lambda inner: st.lists(st.tuples(st.sampled_from(STEPS), inner), min_size=1, max_size=4),
    max_leaves=8,
).filter(lambda plan: not isinstance(plan, bool))


def train(model, optimizer, recorder, low):
    for _ in range(2):
        with recorder.step() if recorder else contextlib.nullcontext():
            optimizer.zero_grad()
            x = torch.randn(3, WIDTH, requires_grad=True)
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=low):
                y, rest = model(x)
            (torch.tanh(y.float()).sum() + rest["first"].sum()).backward()
            yield from (t.detach().clone() for t in (y, x.grad, *(p.grad for p in model.parameters())) if t is not None)
            optimizer.step()
    yield from (t.clone() for t in model.state_dict().values())


def run(plan, low, session):
    """All that training leaves behind, and its error: some random models overwrite what autograd needs."""
    torch.manual_seed(3)
    model, trace = Node(plan), []
    optimizer = torch.optim.SGD(model.parameters(), 1e-3, momentum=0.9)
    with session(model, optimizer) if session else contextlib.nullcontext() as recorder:
        try:
            trace.extend(train(model, optimizer, recorder, low))
        except RuntimeError as error:
            return trace, str(error)
    return trace, ""


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(plan=plans, low=st.booleans())
def test_any_model(plan, low, new_sink):
    sink = new_sink()
    plain, error = run(plan, low, None)
    watched, same_error = run(plan, low, lambda model, optimizer: capture(model, None, sink=sink, optimizer=optimizer))
    assert error == same_error
    assert len(plain) == len(watched)
    for left, right in zip(plain, watched):
        assert left.stride() == right.stride()
        assert torch.equal(left.contiguous().view(-1).view(torch.uint8), right.contiguous().view(-1).view(torch.uint8))
    dump = sink.dump()
    assert not [note for note in dump.notes if "not recorded" in note]
    assert len({r.key for r in dump.records}) == len(dump.records)
    assert all(not c.error for c in dump.calls if c.pass_ == "first")
    if not error:
        check_shares(dump, low)


ALL = ("modules", "gradients", "parameters", "optimizer", "functions", "operators")


def watch(model, kept):
    """Hooks of the test's own: copies of what goes in and comes out, by scope and call."""

    def copy(value):
        return [leaf.detach().clone() for leaf in leaves(value)]

    def enter(scope, args):
        if graph_task() == -1:
            kept[scope].append([copy(args)])

    def leave(scope, output):
        if graph_task() == -1:
            kept[scope][-1].append(copy(output))

    for scope, module in model.named_modules():
        module.register_forward_pre_hook(lambda m, args, s=scope: enter(s, args))
        module.register_forward_hook(lambda m, args, output, s=scope: leave(s, output))


def leaves(value):
    if isinstance(value, torch.Tensor):
        return [value]
    items = value.values() if isinstance(value, dict) else value if isinstance(value, tuple) else []
    return [leaf for item in items for leaf in leaves(item)]


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(plan=plans, low=st.booleans())
def test_every_source_at_once_changes_nothing_and_every_tensor_reads_back_bit_exact(plan, low, new_sink):
    sink, kept = new_sink(), defaultdict(list)
    plain, error = run(plan, low, None)

    def session(model, optimizer):
        watch(model, kept)
        return capture(model, None, sink=sink, optimizer=optimizer, sources=ALL)

    watched, same_error = run(plan, low, session)
    assert (error, len(plain)) == (same_error, len(watched))
    for left, right in zip(plain, watched):
        assert torch.equal(left.contiguous().view(-1).view(torch.uint8), right.contiguous().view(-1).view(torch.uint8))
    dump = sink.dump()
    assert not [note for note in dump.notes if "not recorded" in note]
    assert len({r.key for r in dump.records}) == len(dump.records) == len(sink._entries)
    found = defaultdict(list)
    for record in dump.records:
        key = record.key
        wanted = key.source == "module" and key.role in ("input", "output") and key.pass_ == "first"
        if wanted and not key.path.startswith(("written", "kwargs")):
            found[key.step, key.scope, key.call, str(key.role)].append(dump.payload(key))
    calls = {scope: sorted(n for n in found if n[1] == scope and n[3] == "output") for scope in kept}
    for scope, expected in kept.items():
        assert error or len(calls[scope]) == len(expected)
        for (step, _, call, _), pair in zip(calls[scope], expected):
            for role, tensors in zip(("input", "output"), pair):
                words = [t.contiguous().view(-1).view(torch.uint8).numpy().tobytes() for t in tensors]
                assert [array.tobytes() for array in found[step, scope, call, role]] == words


def check_shares(dump, low):
    """Every parameter is used by its own module only, so its calls' shares make up its gradient."""
    shares, totals = defaultdict(float), {}
    for record in dump.records:
        key = record.key
        if key.role != "gradient":
            continue
        place = (key.step, key.scope, key.path.replace("parameter.", ""))
        if key.source == "optimizer":
            totals[place] = dump.values(key).astype(np.float64)
        elif key.path.startswith("parameter."):
            shares[place] += dump.values(key).astype(np.float64)
    tolerance = 4e-2 if low else 1e-4
    for place, total in totals.items():
        if place[0] or np.any(total):
            scale = np.abs(total).max() + 1e-3
            np.testing.assert_allclose(shares[place] / scale, total / scale, atol=tolerance, err_msg=str(place))
