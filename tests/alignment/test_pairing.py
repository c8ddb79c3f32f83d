"""Which call answers to which: steps by content, calls by content, then by number."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from precision_align.alignment.pairing import Alignment, match_in_order
from precision_align.alignment.side import Side
from precision_align.recording.session import capture
from precision_align.storage.memory import MemorySink

BATCHES = torch.randn(8, 3, 4, generator=torch.Generator().manual_seed(0))


class Net(nn.Module):
    """Calls one layer several times, in a given order of slices."""

    def __init__(self, order=(0, 1, 2)):
        super().__init__()
        torch.manual_seed(0)
        self.fc = nn.Linear(4, 4)
        self.order = order

    def forward(self, x):
        return sum(self.fc(x[row]) for row in self.order)


def make_side(batches, payload="full", order=(0, 1, 2)):
    model, sink = Net(order), MemorySink()
    with capture(model, None, sink=sink, payload=payload) as recorder:
        for batch in batches:
            with recorder.step():
                model(BATCHES[batch])
    return Side(sink.dump())


def pair_steps(reference, candidate, payload="full"):
    found = Alignment(make_side(reference, payload), make_side(candidate, payload))
    return {unit.step: partner.step for unit, partner in found.units.items()}, found.notes


def test_same_runs_pair_by_number():
    assert pair_steps([0, 1, 2], [0, 1, 2]) == ({0: 0, 1: 1, 2: 2}, [])


def test_other_data_pair_by_number_so_that_inputs_are_compared():
    assert pair_steps([0, 1, 2], [3, 4, 5])[0] == {0: 0, 1: 1, 2: 2}


def test_shuffled_batches_pair_by_number_and_are_told():
    steps, notes = pair_steps([0, 1, 2, 3, 4, 5], [5, 4, 3, 2, 1, 0])
    assert steps == {index: index for index in range(6)}
    assert any("another order" in note for note in notes)


def test_a_warm_up_step_shifts_nothing():
    steps, notes = pair_steps([0, 1, 2], [7, 0, 1, 2])
    assert steps == {1: 0, 2: 1, 3: 2}
    assert any("k-1" in note for note in notes)
    assert any("1 of 4" in note for note in notes)


def test_a_skipped_batch():
    steps, notes = pair_steps([0, 1, 2, 3], [0, 2, 3])
    assert steps == {0: 0, 1: 2, 2: 3}
    assert any("k+1" in note for note in notes)


def test_without_fingerprints_steps_pair_by_number():
    side = make_side([0, 1])
    for node in side.nodes:
        node.tensors = {}
    found = Alignment(side, make_side([0, 1]))
    assert {unit.step: partner.step for unit, partner in found.units.items()} == {0: 0, 1: 1}


def test_without_a_reference_nothing_is_paired():
    found = Alignment(None, make_side([0]))
    assert (found.units, found.pairs) == ({}, {})


def pair_calls(reference, candidate):
    found = Alignment(make_side([0], order=reference), make_side([0], order=candidate))
    pairs = {node.number: other.number for node, other in found.pairs.items() if node.scope == "fc"}
    return pairs, found


def test_swapped_calls_of_one_module_pair_by_what_they_were_fed():
    assert pair_calls((0, 1, 2), (2, 0, 1))[0] == {0: 2, 1: 0, 2: 1}


def test_an_extra_call_is_left_out():
    pairs, found = pair_calls((0, 1), (0, 2, 1))
    assert pairs == {0: 0, 2: 1}
    assert any("1 inserted, 0 removed" in note for note in found.notes)


def test_a_missing_call_is_listed():
    pairs, found = pair_calls((0, 2, 1), (0, 1))
    assert pairs == {0: 0, 1: 2}
    assert [node.number for node in found.reference.nodes if node not in found.pairs.values()] == [1]


@pytest.mark.parametrize("count", [2, 3])
def test_equal_inputs_pair_in_order(count):
    assert pair_calls((0,) * count, (0,) * count)[0] == {index: index for index in range(count)}


def test_five_thousand_steps():
    steps = [(("args.0", index.to_bytes(4, "big")),) for index in range(5000)]
    assert len(match_in_order(steps, steps[1:] + steps[:1])) == 4999
    assert len(match_in_order(steps[::2], steps)) == 2500


def test_empty_fingerprints_match_nothing():
    assert match_in_order([(), ()], [(), ()]) == []


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.lists(st.integers(0, 5)), st.lists(st.integers(0, 5)))
def test_matches_are_equal_increasing_and_unique(left, right):
    left, right = [(value,) for value in left], [(value,) for value in right]
    pairs = match_in_order(left, right)
    assert all(left[one] == right[other] for one, other in pairs)
    assert all(before[0] < after[0] and before[1] < after[1] for before, after in zip(pairs, pairs[1:]))


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.lists(st.integers(0, 50), unique=True), st.data())
def test_a_run_with_one_step_removed_pairs_all_others(steps, data):
    items = [(value,) for value in steps]
    if items:
        gone = data.draw(st.integers(0, len(items) - 1))
        assert len(match_in_order(items, items[:gone] + items[gone + 1 :])) == len(items) - 1
