"""Compilers, tracers and copies of the model: they see a captured model as they would see the plain one."""

from __future__ import annotations

import copy
import io
import re

import pytest
import torch
from torch import nn

pytestmark = pytest.mark.live


def small():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 1))


def test_copies_of_the_model_made_meanwhile_are_not_recorded(record):
    model = small()

    def body(recorder):
        with recorder.step():
            copy.deepcopy(model)(torch.ones(1, 3))
            stream = io.BytesIO()
            torch.save(model, stream)
            stream.seek(0)
            loaded = torch.load(stream, weights_only=False) if "weights_only" in LOADS else torch.load(stream)
            assert torch.equal(loaded(torch.ones(1, 3)), model(torch.ones(1, 3)))

    dump = record(model, body)
    assert len(dump.calls) == 4


LOADS = torch.load.__code__.co_varnames


def test_compiled_code_is_left_alone_and_said_so(record):
    if torch.__version__ < "2.3":
        pytest.skip("torch.compiler.is_compiling came with torch 2.3")
    model = small()
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    x = torch.ones(2, 3)
    plain = compiled(x)
    kept = []
    dump = record(model, lambda recorder: kept.append(compiled(x)))
    assert torch.equal(kept[0], plain)
    assert not dump.records
    assert any("compile" in note for note in dump.notes)
    dump = record(compiled, lambda recorder: compiled(x))
    assert any("compiled" in note for note in dump.notes)


def test_compiled_code_under_the_operator_source_gives_the_same_and_a_note(record):
    if torch.__version__ < "2.3":
        pytest.skip("torch.compiler.is_compiling came with torch 2.3")
    torch._dynamo.reset()
    model = small()
    compiled = torch.compile(model, backend="eager")
    x = torch.ones(2, 3)
    plain, kept = compiled(x), []
    dump = record(model, lambda recorder: kept.append(compiled(x)), sources=("operators", "functions"))
    assert torch.equal(kept[0], plain)
    assert any("eagerly" in note for note in dump.notes)
    assert any(r.key.op == "aten.addmm.default" for r in dump.records)
    torch._dynamo.reset()


def test_a_fused_inference_path_that_hooks_switch_off_is_said(record):
    model = nn.TransformerEncoderLayer(4, 1, 4, dropout=0.0, batch_first=True)
    x = torch.randn(1, 2, 4)
    assert not [n for n in record(model.train(), lambda recorder: model(x)).notes if "fused" in n]
    assert [n for n in record(model.eval(), lambda recorder: model(x)).notes if "fused" in n]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_scripted_submodules_are_skipped_with_a_note(record):
    model = nn.Sequential(nn.Linear(3, 3), torch.jit.script(nn.Tanh()))
    dump = record(model, lambda recorder: model(torch.ones(1, 3)).sum().backward())
    assert {c.scope for c in dump.calls} == {"0", ""}
    assert any("'1'" in note and "TorchScript" in note for note in dump.notes)


def test_symbolic_tracing_goes_on_as_before(record):
    model = small()
    plain = torch.fx.symbolic_trace(model).code
    kept = []
    record(model, lambda recorder: kept.append(torch.fx.symbolic_trace(model).code))
    assert kept == [plain]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_jit_tracing_goes_on_as_before(record):
    model, x = small(), torch.ones(1, 3)
    plain = str(torch.jit.trace(model, x).inlined_graph)
    kept = []
    record(model, lambda recorder: kept.append(str(torch.jit.trace(model, x).inlined_graph)))
    assert strip_lines(kept[0]) == strip_lines(plain)


def strip_lines(graph):
    return [re.sub(r"___torch_mangle_\d+\.", "", line.partition("#")[0]) for line in graph.splitlines()]
