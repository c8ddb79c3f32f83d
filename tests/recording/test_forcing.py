"""Forced capture: every module is fed the reference's numbers and its own results are recorded."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn

from precision_align.core.terms import Phase, Role, Source
from precision_align.recording.session import capture
from precision_align.recording.substitution import substitute
from precision_align.storage.opening import open_dump

pytestmark = pytest.mark.live


class Scaled(nn.Module):
    def __init__(self, factor=1.0):
        super().__init__()
        self.factor = factor

    def forward(self, x):
        return x.tanh() * self.factor


def build(factor=1.0):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), Scaled(), nn.Linear(4, 4), Scaled(factor), nn.Linear(4, 4), nn.Linear(4, 1))


def train(model, sink, steps=2, lr=0.1, **options):
    optimizer = torch.optim.AdamW(model.parameters(), lr)
    losses = []
    with capture(model, None, sink=sink, optimizer=optimizer, **options) as recorder:
        for step in range(steps):
            with recorder.step():
                torch.manual_seed(step)
                optimizer.zero_grad()
                loss = model(torch.randn(3, 4)).square().sum()
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
    return losses, sink.dump()


def differing(reference, candidate, **wanted):
    """Keys of records that both have with other values."""
    known = {str(r.key): r for r in reference.records}
    pairs = [(known[str(r.key)], r) for r in candidate.records if str(r.key) in known]
    assert len(pairs) > 20
    return [
        right.key
        for left, right in pairs
        if left.digest != right.digest and all(getattr(right.key, name) == value for name, value in wanted.items())
    ]


def test_a_faulty_module_is_alone_in_differing(new_sink):
    losses, reference = train(build(), new_sink())
    forced_losses, candidate = train(build(factor=1.5), new_sink(), force=reference)
    assert forced_losses == losses
    assert candidate.info.forced
    forward = differing(reference, candidate, source=Source.MODULE, phase=Phase.FORWARD)
    assert {(key.scope, key.role, key.step) for key in forward} == {("3", Role.OUTPUT, 0), ("3", Role.OUTPUT, 1)}
    backward = differing(reference, candidate, source=Source.MODULE, phase=Phase.BACKWARD)
    assert {(key.scope, key.path) for key in backward} == {("2", "output"), ("3", "input.args.0")}
    assert not differing(reference, candidate, source=Source.OPTIMIZER)
    assert not differing(reference, candidate, source=Source.PARAMETERS, role=Role.PARAMETER)
    plain = train(build(factor=1.5), new_sink())[1]
    assert len(differing(reference, plain, source=Source.MODULE, phase=Phase.FORWARD)) > len(forward)


def test_a_wrong_update_is_recorded_and_then_overwritten(new_sink):
    _, reference = train(build(), new_sink(), steps=3)
    _, candidate = train(build(), new_sink(), steps=3, lr=0.2, force=reference)
    updates = differing(reference, candidate, source=Source.OPTIMIZER)
    assert {key.role for key in updates} == {Role.PARAMETER}
    assert {key.step for key in updates} == {0, 1, 2}
    assert not differing(reference, candidate, source=Source.MODULE)
    assert not differing(reference, candidate, source=Source.PARAMETERS)


def test_own_gradient_totals_are_recorded_beside_the_forced_ones(new_sink):
    _, reference = train(build(), new_sink())
    _, candidate = train(build(), new_sink(), force=reference)
    totals = [r for r in candidate.records if r.key.source == Source.PARAMETERS and r.key.role == Role.GRADIENT]
    assert len(totals) == 2 * 8
    seen = [r for r in candidate.records if r.key.source == Source.OPTIMIZER and r.key.role == Role.GRADIENT]
    assert {r.digest for r in totals} == {r.digest for r in seen}


def test_forcing_a_model_from_itself_changes_nothing(kind, run_training, new_sink):
    first, second = new_sink(), new_sink()
    _, model, _ = run_training(kind, lambda model, optimizer: capture(model, None, sink=first, optimizer=optimizer))
    reference = first.dump()
    _, same, recorder = run_training(
        kind, lambda model, optimizer: capture(model, None, sink=second, optimizer=optimizer, force=reference)
    )
    for left, right in zip(model.state_dict().values(), same.state_dict().values()):
        assert torch.equal(left, right)
    known = {str(r.key): r for r in reference.records}
    for record in second.dump().records:
        if str(record.key) in known and record.key.role not in (Role.LOSS, Role.GRADIENT):
            assert record.digest == known[str(record.key)].digest, str(record.key)
    assert any(note.startswith("forced from a reference") for note in recorder.notes)
    assert not [note for note in recorder.notes if "shape" in note or "no such call" in note]


def test_a_call_that_the_reference_lacks_is_listed_and_not_forced(new_sink):
    class Twice(nn.Module):
        def __init__(self, times):
            super().__init__()
            self.times, self.inner = times, nn.Linear(2, 2)

        def forward(self, x):
            for _ in range(self.times):
                x = self.inner(x) + 1
            return x

    torch.manual_seed(0)
    one, three = Twice(1), Twice(3)
    three.load_state_dict(one.state_dict())
    sink, other = new_sink(), new_sink()
    x = torch.ones(2)
    with capture(one, None, sink=sink):
        one(x)
    expected = three(x)
    with capture(three, None, sink=other, force=sink.dump()):
        result = three(x)
    assert torch.equal(result, one(x))  # the root's output is the reference's
    dump = other.dump()
    (own,) = [r for r in dump.records if r.key.scope == "" and r.key.role == Role.OUTPUT]
    assert np.array_equal(dump.values(own.key), expected.detach().numpy())
    (note,) = [note for note in dump.notes if "no such call" in note]
    assert note.count("'inner'") == 2


def test_calls_are_paired_by_inputs_before_numbers(new_sink):
    class Ordered(nn.Module):
        def __init__(self, order):
            super().__init__()
            self.order, self.inner = order, nn.Linear(2, 2)

        def forward(self, x):
            results = {number: self.inner(x * (number + 1)) for number in self.order}
            return results[0] - results[1]

    torch.manual_seed(0)
    one = Ordered((0, 1))
    two = copy.deepcopy(one)
    two.order = (1, 0)
    sink, other = new_sink(), new_sink()
    with capture(one, None, sink=sink):
        one(torch.ones(2))
    with capture(two, None, sink=other, force=sink.dump()):
        two(torch.ones(2))
    outputs = [
        {r.key.call: r.digest for r in s.dump().records if r.key.scope == "inner" and r.key.role == Role.OUTPUT}
        for s in (sink, other)
    ]
    assert outputs[0][0] == outputs[1][1]
    assert not [note for note in other.dump().notes if "paired by number" in note]


def test_nan_is_forced_too(new_sink):
    sink, other = new_sink(), new_sink()
    bad, good = nn.Sequential(Scaled(float("nan")), nn.Identity()), nn.Sequential(Scaled(), nn.Identity())
    with capture(bad, None, sink=sink):
        bad(torch.ones(2))
    with capture(good, None, sink=other, force=sink.dump()):
        assert good(torch.ones(2)).isnan().all()
    (own,) = [r for r in other.dump().records if r.key.scope == "0" and r.key.role == Role.OUTPUT]
    assert own.statistics.nan == 0


def test_a_reference_without_payloads_forces_nothing_and_says_so(new_sink):
    _, reference = train(build(), new_sink(), payload="fingerprint")
    _, candidate = train(build(factor=1.5), new_sink(), force=reference)
    assert any("has no payload" in note for note in candidate.notes)


def test_a_path_can_be_given(tmp_path, new_sink):
    model = build()
    with capture(model, tmp_path / "reference"):
        model(torch.ones(1, 4))
    wrong = build(2.0)
    with capture(wrong, tmp_path / "candidate", force=tmp_path / "reference"):
        assert torch.equal(wrong(torch.ones(1, 4)), model(torch.ones(1, 4)))
    with open_dump(tmp_path / "candidate") as dump:
        assert dump.info.forced


@dataclass
class Result:
    values: torch.Tensor
    name: str


def test_structures_are_built_anew_and_the_old_ones_stay():
    old, new, other = torch.zeros(1), torch.ones(1), torch.zeros(2)
    kept = {"a": [old, other], "b": (old, None), "c": Result(old, "x"), "d": other}
    changed = substitute(kept, {id(old): new})
    assert changed["a"][0] is new
    assert changed["b"] == (new, None)
    assert changed["c"].values is new
    assert changed["c"].name == "x"
    assert changed["d"] is other
    assert kept["a"][0] is old
    assert kept["c"].values is old
    assert substitute(kept, {}) is kept
    assert type(substitute(torch.max(torch.ones(1, 2), 1), {})).__name__ == "max"
    pair = torch.max(torch.ones(1, 2), 1)
    assert substitute(pair, {id(pair.values): new})[0] is new
