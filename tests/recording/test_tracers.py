"""Compilers, tracers and copies of the model: they see a captured model as they would see the plain one."""

from __future__ import annotations

import copy
import io
import re

import pytest
import torch
from torch import nn

from precision_align.core.errors import NothingCaptured, UsageError

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
            assert b"precision_align" not in stream.getvalue(), "it must load where this package is not installed"
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
    with pytest.raises(NothingCaptured, match="eager=True"):
        record(model, lambda recorder: kept.append(compiled(x)))
    assert torch.equal(kept[0], plain)
    assert not record.sink.dump().calls
    dump = record(compiled, lambda recorder: compiled(x))
    assert any("compiled" in note for note in dump.notes)


@pytest.mark.skipif(not hasattr(torch.compiler, "set_stance"), reason="torch.compiler.set_stance came with torch 2.6")
@pytest.mark.parametrize("when", ["before", "meanwhile", "a part"])
def test_the_eager_pass_sees_what_compiled_code_hides(record, when):
    torch._dynamo.reset()
    model, x = small(), torch.ones(2, 3)
    plain = model(x)
    compiled = torch.compile(model, backend="eager") if when == "before" else model
    if when == "before":
        compiled(x)
    if when == "a part":
        model[0].compile(backend="eager")

    def body(recorder):
        run = torch.compile(model, backend="eager") if when == "meanwhile" else compiled
        assert torch.equal(run(x), plain)

    dump = record(model, body, eager=True)
    assert {call.scope for call in dump.calls} == {name for name, _ in model.named_modules()}
    torch._dynamo.reset()


def test_the_eager_pass_is_refused_where_torch_has_none(record, monkeypatch):
    monkeypatch.delattr(torch.compiler, "set_stance", raising=False)
    with pytest.raises(UsageError, match="TORCHDYNAMO_DISABLE=1"):
        record(small(), lambda recorder: None, eager=True)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_scripted_model_is_an_error_or_seen_by_its_operators(record):
    model, x = torch.jit.script(small()), torch.ones(2, 3)
    with pytest.raises(NothingCaptured, match="PYTORCH_JIT=0"):
        record(model, lambda recorder: model(x))

    def body(recorder):
        with recorder.step():
            model(x)

    dump = record(model, body, sources=("operators",))
    assert any(c.kind.startswith("aten.") for c in dump.calls)


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
    record(model, lambda recorder: kept.append(torch.fx.symbolic_trace(model).code) or model(torch.ones(1, 3)))
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
