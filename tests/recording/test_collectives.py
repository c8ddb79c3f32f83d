"""Collectives as records: what goes in, what comes out when it was waited for, the group, and nothing else changed."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import nn

from precision_align.core.records import COLLECTIVE_SCOPE
from precision_align.core.terms import Role, Source
from precision_align.recording.collectives import NO_OPERATION, UNKNOWN_OPERATION
from precision_align.recording.session import capture
from precision_align.storage.opening import open_dump

distributed = torch.distributed
pytestmark = [
    pytest.mark.live,
    pytest.mark.skipif(not distributed.is_available(), reason="this torch has no torch.distributed"),
]
SOURCES = ("modules", "gradients", "parameters", "optimizer", "collectives")


@pytest.fixture(scope="module", autouse=True)
def world_of_one():
    distributed.init_process_group("gloo", rank=0, world_size=1, store=distributed.HashStore())
    yield
    distributed.destroy_process_group()


class Talking(nn.Module):
    def forward(self, x):
        summed, gathered, low = x.clone(), [torch.empty_like(x)], x.half()
        distributed.all_reduce(summed)
        distributed.all_gather(gathered, x)
        handle = distributed.all_reduce(low, op=distributed.ReduceOp.MAX, async_op=True)
        handle.wait()
        distributed.broadcast(summed, 0)
        return summed + gathered[0] + low


def told_operation(name, dump):
    """Torch 2.1 does not tell it, and the dump says so."""
    return UNKNOWN_OPERATION if NO_OPERATION in dump.notes else name


def test_kind_group_dtype_and_tensors_are_recorded(tmp_path):
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(1))
    kept = [distributed.all_reduce, distributed.all_gather, distributed.broadcast]
    model = Talking()
    with capture(model, tmp_path / "dump", sources=SOURCES):
        model(x)
        assert kept == [distributed.all_reduce, distributed.all_gather, distributed.broadcast]
    dump = open_dump(tmp_path / "dump")
    calls = [call for call in dump.calls if call.scope.startswith(COLLECTIVE_SCOPE)]
    described = [call.modes["collective"] for call in calls]
    told = [(one["kind"], one["reduce_op"], one["dtype"]) for one in sorted(described, key=lambda one: one["sequence"])]
    assert told == [
        ("all_reduce", told_operation("sum", dump), "float32"),
        ("all_gather", "", "float32"),
        ("all_reduce", told_operation("max", dump), "float16"),
        ("broadcast", "", "float32"),
    ]
    assert {tuple(one["ranks"]) for one in described} == {(0,)}
    assert {one["group"] for one in described} == {"world"}
    outer = next(call for call in dump.calls if call.scope == "")
    assert {call.parent for call in calls} == {outer.identity}
    records = [record for record in dump.records if record.key.source == Source.COLLECTIVE]
    assert [r.key.role for r in records].count(Role.INPUT) == [r.key.role for r in records].count(Role.OUTPUT) == 4
    for record in records:
        expected = x if record.dtype == "float32" else x.half()
        assert np.array_equal(dump.values(record.key), expected.numpy()), record.key
    assert set(dump.notes) <= {NO_OPERATION}


def test_buckets_are_seen_and_no_bit_changes(tmp_path):
    torch.manual_seed(0)
    first = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    second = copy.deepcopy(first)
    x = torch.randn(5, 4)

    def train(net, path):
        wrapped = nn.parallel.DistributedDataParallel(net)
        optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1)
        if path is None:
            wrapped(x).square().mean().backward()
            optimizer.step()
            return
        with capture(wrapped, path, optimizer=optimizer, sources=SOURCES) as recorder, recorder.step():
            wrapped(x).square().mean().backward()
            optimizer.step()

    train(first, None)
    train(second, tmp_path / "dump")
    assert all(map(torch.equal, first.parameters(), second.parameters()))
    dump = open_dump(tmp_path / "dump")
    buckets = [
        record for record in dump.records if (record.key.op, str(record.key.phase)) == ("all_reduce", "backward")
    ]
    sizes = {record.shape for record in buckets}
    assert sizes == {(sum(parameter.numel() for parameter in first.parameters()),)}
    assert {record.key.role for record in buckets} == {Role.INPUT, Role.OUTPUT}


def test_a_session_without_them_records_none(tmp_path):
    model = Talking()
    with capture(model, tmp_path / "dump"):
        model(torch.ones(2))
    dump = open_dump(tmp_path / "dump")
    assert not [call for call in dump.calls if call.scope.startswith(COLLECTIVE_SCOPE)]
