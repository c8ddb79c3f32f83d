"""Module calls: who called whom, in which order, with what."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from precision_align.core.trees import rebuild

pytestmark = pytest.mark.live


def of(dump, scope):
    return [call for call in dump.calls if call.scope == scope]


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc, self.act = nn.Linear(2, 2), nn.ReLU()

    def forward(self, x, *, flag=True, size=(1, 2)):
        return self.act(self.fc(self.fc(x)))


def test_calls_are_numbered_nested_and_ordered(record):
    model = nn.Sequential(Twice(), nn.Identity())
    dump = record(model, lambda recorder: model(torch.ones(1, 2)))
    calls = {(call.scope, call.call): call for call in dump.calls}
    assert list(calls) == [("0.fc", 0), ("0.fc", 1), ("0.act", 0), ("0", 0), ("1", 0), ("", 0)]
    by_identity = {call.identity: call for call in dump.calls}
    parents = {call.scope: by_identity[call.parent].scope for call in dump.calls if call.parent != -1}
    assert parents == {"0.fc": "0", "0.act": "0", "0": "", "1": ""}
    assert sorted(by_identity) == [call.identity for call in sorted(dump.calls, key=lambda call: call.enter)]
    for call in dump.calls:
        inside = [r for r in dump.records if r.key.scope == call.scope and r.key.call == call.call]
        forward = [r.order for r in inside if r.key.source == "module" and r.key.phase == "forward"]
        assert forward
        assert all(call.enter < order < call.exit for order in forward)
    assert [call.leaf for call in dump.calls] == [True, True, True, False, True, False]
    assert dump.info.modules["0.fc"] == "torch.nn.modules.linear.Linear"


def test_arguments_come_back_from_their_tree(record):
    @dataclass
    class Pack:
        a: torch.Tensor
        b: Any = None

    class Net(nn.Module):
        def forward(self, *, pack, shift=None, how="sum"):
            return Pack(pack["x"] + shift, [None, {"y": pack["x"] * 2, "n": 3}])

    model, x, shift = Net(), torch.arange(3.0), torch.ones(3)
    dump = record(model, lambda recorder: model(pack={"x": x}, shift=shift, how="sum"))
    (call,) = dump.calls
    tensors = {r.key.path: torch.from_numpy(dump.values(r.key)) for r in dump.records if r.key.role == "input"}
    arguments = rebuild(call.arguments, tensors, lambda name: None, lambda kind, value: value)
    assert arguments["args"] == ()
    assert arguments["kwargs"]["how"] == "sum"
    assert torch.equal(arguments["kwargs"]["pack"]["x"], x)
    assert torch.equal(arguments["kwargs"]["shift"], shift)
    outputs = {r.key.path: dump.values(r.key).tolist() for r in dump.records if r.key.role == "output"}
    assert outputs == {"a": [1, 2, 3], "b.1.y": [0, 2, 4]}
    assert call.output["kind"] == "dataclass"


def test_none_and_empty_outputs(record):
    class Quiet(nn.Module):
        def forward(self):
            return None

    dump = record(model := Quiet(), lambda recorder: model())
    assert dump.calls[0].output == {"kind": "scalar", "value": None}
    assert dump.calls[0].error == ""


def test_an_object_that_cannot_be_looked_into_costs_only_its_own_tree(record):
    class Hostile(dict):
        def items(self):
            raise RuntimeError("no entry")

    class Net(nn.Module):
        def forward(self, x, extra):
            return x + 1

    dump = record(model := Net(), lambda recorder: model(torch.ones(2), Hostile(a=1)))
    assert dump.calls[0].arguments["kind"] == "object"
    assert [r.key.role for r in dump.records] == ["output"]


def test_inputs_are_as_before_the_call(record):
    model = nn.Sequential(nn.ReLU(inplace=True))
    dump = record(model, lambda recorder: model(torch.tensor([-1.0, 2.0])))
    inputs = {r.key.scope: dump.values(r.key).tolist() for r in dump.records if r.key.role == "input"}
    assert inputs == {"0": [-1, 2], "": [-1, 2]}


def test_an_exception_passes_unchanged_and_is_recorded(record):
    problem = ValueError("bad batch")

    class Fails(nn.Module):
        def forward(self, x):
            if x.sum() > 0:
                raise problem
            return x

    model = nn.Sequential(nn.Identity(), Fails())

    def body(recorder):
        with pytest.raises(ValueError, match="bad batch") as caught:
            model(torch.ones(2))
        assert caught.value is problem
        model(-torch.ones(2))

    dump = record(model, body)
    assert [(call.step, call.scope, call.error) for call in dump.calls] == [
        (0, "0", ""),
        (0, "1", "ValueError: bad batch"),
        (0, "", "ValueError: bad batch"),
        (1, "0", ""),
        (1, "1", ""),
        (1, "", ""),
    ]


def test_a_call_inside_an_except_block_did_not_raise(record):
    def body(recorder):
        try:
            raise KeyError("elsewhere")
        except KeyError:
            model(torch.ones(1, 2))

    dump = record(model := nn.Linear(2, 2), body)
    assert dump.calls[0].error == ""


def test_a_forward_that_catches_its_childs_exception_goes_on(record):
    class Picky(nn.Module):
        def forward(self, x):
            raise RuntimeError("not today")

    class Tolerant(nn.Module):
        def __init__(self):
            super().__init__()
            self.picky, self.fc = Picky(), nn.Linear(2, 2)

        def forward(self, x):
            try:
                return self.picky(x)
            except RuntimeError:
                return self.fc(x)

    dump = record(model := Tolerant(), lambda recorder: model(torch.ones(1, 2)))
    assert [(call.scope, call.error != "") for call in dump.calls] == [("picky", True), ("fc", False), ("", False)]
    assert of(dump, "fc")[0].parent == of(dump, "")[0].identity


def test_a_keyboard_interrupt_leaves_no_frame_behind(record):
    class Stops(nn.Module):
        stop = True

        def forward(self, x):
            if self.stop:
                raise KeyboardInterrupt
            return x

    model = nn.Sequential(nn.Identity(), Stops())

    def body(recorder):
        with pytest.raises(KeyboardInterrupt), recorder.step():
            model(torch.ones(2))
        model[1].stop = False
        with recorder.step():
            model(torch.ones(2))

    dump = record(model, body)
    assert [(c.step, c.scope, c.parent == -1) for c in dump.calls if c.step == 1] == [
        (1, "0", False),
        (1, "1", False),
        (1, "", True),
    ]
    assert {call.scope for call in dump.calls if call.step == 0} >= {"0"}


# The last tensor that the backward pass needs is made inside the activation: there the repetition ends.
STOPPED = {True: {"blocks.0.act", "blocks.0", "blocks.1.act", "blocks.1"}, False: set()}


@pytest.mark.parametrize("early_stop", [True, False])
def test_recomputed_calls_are_marked_and_stay_in_step(record, early_stop):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList(Twice() for _ in range(2))

        def forward(self, x):
            for block in self.blocks:
                x = checkpoint(block, x, use_reentrant=False)
            return x.sum()

    model = Net()

    def body(recorder):
        for _ in range(2):
            with recorder.step(), torch.utils.checkpoint.set_checkpoint_early_stop(early_stop):
                model(torch.ones(1, 2, requires_grad=True)).backward()

    dump = record(model, body)
    for step in range(2):
        first = [c.scope for c in dump.calls if c.step == step and c.pass_ == "first"]
        again = [c for c in dump.calls if c.step == step and c.pass_ == "recompute"]
        parts = [f"blocks.{index}{part}" for index in (0, 1) for part in (".fc", ".fc", ".act", "")]
        assert first == [*parts, ""]
        assert {c.parent for c in again if c.scope.count(".") == 1} == {-1}
        assert {c.scope for c in again if c.error} == STOPPED[early_stop]
        assert [c.scope for c in again][-1] == "blocks.0"
    keys = [record.key for record in dump.records]
    assert len(set(keys)) == len(keys)


def test_micro_batches_and_steps(record):
    model = nn.Sequential(nn.Linear(2, 2))

    def body(recorder):
        for _ in range(2):
            with recorder.step():
                for _ in range(3):
                    model(torch.ones(1, 2)).sum().backward()
        with recorder.step(10):
            model(torch.ones(1, 2))
        with recorder.step():
            model[0](torch.ones(1, 2))

    dump = record(model, body)
    assert [(c.step, c.micro, c.call) for c in of(dump, "0")] == [
        *[(step, micro, 0) for step in (0, 1) for micro in (0, 1, 2)],
        (10, 0, 0),
        (11, 0, 0),
    ]
    assert [(p.step, p.micro) for p in dump.series] == [(step, micro) for step in (0, 1) for micro in (0, 1, 2)]


def test_without_step_each_forward_is_one(record):
    model = nn.Sequential(nn.Linear(2, 2))

    def body(recorder):
        for _ in range(2):
            model(torch.ones(1, 2)).sum().backward()
        model(torch.ones(1, 2))

    dump = record(model, body)
    assert [(c.step, c.micro) for c in of(dump, "")] == [(0, 0), (1, 0), (2, 0)]
    assert [p.step for p in dump.series] == [0, 1]


def test_without_step_a_model_whose_parts_are_called_steps_after_each_backward(record):
    model = nn.ModuleDict({"encode": nn.Linear(2, 2), "decode": nn.Linear(2, 2)})

    def body(recorder):
        for _ in range(2):
            hidden = model["encode"](torch.ones(1, 2))
            model["decode"](model["encode"](hidden)).sum().backward()

    dump = record(model, body)
    assert [(c.step, c.scope, c.call) for c in dump.calls] == [
        (step, scope, call) for step in (0, 1) for scope, call in (("encode", 0), ("encode", 1), ("decode", 0))
    ]


def test_calls_on_other_threads_have_their_own_stack(record):
    class Fan(nn.Module):
        def __init__(self):
            super().__init__()
            self.parts = nn.ModuleList(nn.Sequential(nn.Linear(2, 2), nn.Tanh()) for _ in range(4))

        def forward(self, x):
            results = [None] * 4

            def work(index):
                results[index] = self.parts[index](x)

            threads = [threading.Thread(target=work, args=(index,)) for index in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            return sum(results)

    model = Fan()
    dump = record(model, lambda recorder: [model(torch.ones(1, 2)).sum().backward() for _ in range(3)])
    assert {call.step for call in dump.calls} == {0, 1, 2}
    assert len(dump.calls) == 3 * 13
    by_identity = {(call.step, call.identity): call for call in dump.calls}
    for call in dump.calls:
        if call.scope.count(".") == 2:
            assert call.scope.startswith(by_identity[call.step, call.parent].scope)


def test_aliases_ties_and_attributes(record):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(2, 2)
            self.b = self.a
            self.c = nn.Linear(2, 2, bias=False)
            self.c.weight = self.a.weight
            self.norm = nn.LayerNorm((2,), eps=1e-3)

        def forward(self, x):
            return self.norm(self.c(self.b(x)))

    dump = record(model := Tied(), lambda recorder: model(torch.ones(1, 2)))
    assert dump.info.aliases == {"a": ["b"]}
    assert dump.info.parameters["a.weight"] == ["b.weight", "c.weight"]
    (norm,) = of(dump, "norm")
    attributes = rebuild(norm.attributes, {}, lambda name: None, lambda kind, value: value)
    assert attributes == {"normalized_shape": (2,), "eps": 1e-3, "elementwise_affine": True}
    assert of(dump, "")[0].attributes is None
    assert norm.source.startswith(f"{__file__}:")
    line = int(norm.source.rpartition(":")[2])
    assert "self.norm(self.c" in Path(__file__).read_text().splitlines()[line - 1]


def test_flags_of_a_call(record):
    model = nn.Sequential(nn.Linear(2, 2)).eval()

    def body(recorder):
        model(torch.ones(1, 2))
        with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
            model(torch.ones(1, 2))
        with torch.inference_mode():
            model(torch.ones(1, 2))

    plain, low, inference = of(record(model, body), "0")
    assert (plain.training, plain.grad_enabled, dict(plain.autocast)) == (False, True, {})
    assert (low.grad_enabled, dict(low.autocast)) == (False, {"cpu": "bfloat16"})
    assert (inference.modes["inference"], plain.modes["inference"]) == (True, False)


def test_buffers_before_and_after(record):
    model = nn.Sequential(nn.BatchNorm1d(3))
    dump = record(model, lambda recorder: model(torch.randn(4, 3)))
    names = [r.key.path for r in dump.records if r.key.role == "buffer" and r.key.source == "module"]
    buffers = ["running_mean", "running_var", "num_batches_tracked"]
    assert names == [f"before.{n}" for n in buffers] + [f"after.{n}" for n in buffers]
    dump = record(model.eval(), lambda recorder: model(torch.randn(4, 3)))
    names = [r.key.path for r in dump.records if r.key.role == "buffer" and r.key.source == "module"]
    assert names == [f"before.{n}" for n in buffers]
