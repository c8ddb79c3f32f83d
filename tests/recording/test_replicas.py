"""DataParallel's replicas, on threads of one device: torch makes real ones only where there are several."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from precision_align.recording import calls
from precision_align.recording.replicas import Replica, find_replica

pytestmark = pytest.mark.live


def replicate(module, count):
    """As torch.nn.parallel.replicate, but for the copies to other devices."""
    modules = list(module.modules())
    places = {part: number for number, part in enumerate(modules)}
    replicas = []
    for _ in range(count):
        copies = [part._replicate_for_data_parallel() for part in modules]
        for part, copy in zip(modules, copies):
            copy._former_parameters = {}
            for name, child in part._modules.items():
                setattr(copy, name, copies[places[child]])
            for name, parameter in part._parameters.items():
                alias = parameter.view_as(parameter)
                setattr(copy, name, alias)
                copy._former_parameters[name] = alias
            copy._buffers = {name: buffer.clone() for name, buffer in part._buffers.items()}
        replicas.append(copies[0])
    return replicas


class Parallel(nn.Module):
    """Runs the replicas in an order: the next one begins while the one before is inside its first part."""

    def __init__(self, module, order):
        super().__init__()
        self.module, self.order, self.device_ids = module, order, [0, 1, 2]

    def forward(self, x):
        replicas, parts = replicate(self.module, 3), x.chunk(3)
        results, begun = [None] * 3, [threading.Event() for _ in range(3)]
        for position, index in enumerate(self.order):
            following = begun[self.order[position + 1]] if position < 2 else None
            wait_for = begun[index]
            self.module.gates[id(parts[index])] = (wait_for, following)

        def work(index):
            results[index] = replicas[index](parts[index])

        threads = [threading.Thread(target=work, args=(index,)) for index in self.order]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        return torch.cat(results)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.gates = {}
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(3, 4), nn.Linear(4, 2)
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x):
        begun, following = self.gates.pop(id(x))
        begun.set()
        if following is not None:
            assert following.wait(60)  # every replica is inside before the first goes on
        return self.second(self.first(self.first(x) @ torch.ones(4, 3)))


@pytest.fixture
def told(monkeypatch):
    """The part's value tells the replica, as its device would."""

    def find(holder, tensors):
        assert holder.device_ids == [0, 1, 2]
        return Replica(int(tensors[0][0, 0]), 3)

    monkeypatch.setattr(calls, "find_replica", find)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_replicas_have_one_number_in_every_order_their_caller_and_their_shares(record, told, order):
    model = Parallel(Net(), list(order))
    x = torch.arange(3.0).repeat_interleave(2)[:, None].expand(6, 3).clone()
    dump = record(model, lambda recorder: model(x).square().sum().backward())
    by_identity = {call.identity: call for call in dump.calls}
    replicas = [call for call in dump.calls if call.scope == "module"]
    assert sorted(call.call for call in replicas) == [0, 1, 2]
    assert {by_identity[call.parent].scope for call in replicas} == {""}
    for call in dump.calls:
        if call.scope not in ("module.first", "module.second"):
            continue
        above = by_identity[call.parent]
        assert (above.scope, above.call) == ("module", call.call % 3)
    assert sorted(call.call for call in dump.calls if call.scope == "module.first") == [0, 1, 2, 3, 4, 5]
    inputs = {r.key.call: dump.values(r.key) for r in dump.records if r.key.scope == "module" and r.key.role == "input"}
    assert {number: float(values[0, 0]) for number, values in inputs.items()} == {0: 0.0, 1: 1.0, 2: 2.0}
    shares = {
        r.key.call: dump.values(r.key)
        for r in dump.records
        if (r.key.scope, r.key.path) == ("module.second", "parameter.weight") and r.key.role == "gradient"
    }
    assert sorted(shares) == [0, 1, 2]
    assert torch.allclose(torch.from_numpy(sum(shares.values())), model.module.second.weight.grad, rtol=1e-5)
    stock = next(call for call in dump.calls if call.scope == "module.first")
    assert "_is_replica" not in str(stock.attributes)


def test_which_replica_is_told_by_the_device():
    holder = SimpleNamespace(device_ids=[2, torch.device("cuda", 0)])
    tensors = [SimpleNamespace(device=torch.device(name)) for name in ("cpu", "cuda:0", "cuda:2")]
    assert find_replica(holder, tensors) == Replica(1, 2)
    assert find_replica(holder, tensors[2:]) == Replica(0, 2)
    assert find_replica(holder, tensors[:1]) is None
    assert find_replica(None, tensors) is None
    assert find_replica(nn.Linear(1, 1), tensors) is None
