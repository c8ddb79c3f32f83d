"""What a session leaves on the disk: all of it bit for bit, a step that broke off, a dump that couldn't be written."""

from __future__ import annotations

import contextlib

import pytest
import torch
from torch import nn

from precision_align.recording.session import capture
from precision_align.storage.opening import open_dump
from precision_align.storage.settings import Settings

pytestmark = pytest.mark.live


def test_everything_recorded_reads_back_bit_for_bit(tmp_path, kind, run_training, sink):
    run_training(kind, lambda model, optimizer: capture(model, None, sink=sink, optimizer=optimizer))
    run_training(kind, lambda model, optimizer: capture(model, tmp_path / "dump", optimizer=optimizer))
    memory, disk = sink.dump(), open_dump(tmp_path / "dump")
    assert [r.key for r in disk.records] == [r.key for r in memory.records]
    assert len(disk.calls) == len(memory.calls)
    for record in memory.records:
        left, right = memory.payload(record.key), disk.payload(record.key)
        assert left.dtype == right.dtype
        assert left.tobytes() == right.tobytes()
    assert disk.info.device == "cpu"
    assert disk.info.versions["torch"] == torch.__version__


def test_a_step_that_ended_with_an_error_is_said_not_to_be_whole(sink):
    model = nn.Linear(2, 2)
    with capture(model, None, sink=sink) as recorder:
        for number in range(3):
            with contextlib.suppress(KeyError), recorder.step():
                output = model(torch.ones(1, 2))
                if number == 1:
                    raise KeyError("a bad batch")
                output.sum().backward()
    assert sink.dump().notes == ["step 1 ended with KeyError: it is not whole"]


def test_a_dump_that_could_not_be_written_is_a_warning_and_no_error(tmp_path):
    """What the program does after the session, such as saving its weights, must still be done."""
    model = nn.Linear(2, 2)
    session = capture(model, tmp_path / "d", storage=Settings(reserve_free=1 << 60))
    with pytest.warns(RuntimeWarning, match="holds no tensors: .* are lost"), session as recorder:
        model(torch.ones(1, 2)).sum().backward()
    assert any("the disk is full" in note for note in recorder.notes)
    assert any("could not be written and are lost" in note for note in recorder.notes)
    with capture(model, tmp_path / "e") as recorder:
        model(torch.ones(1, 2)).sum().backward()
    assert recorder.lost == ""
    assert recorder.notes == ()


def test_hooks_inside_rest_while_no_step_is_wanted_and_come_back(record):
    model, seen = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 1)), {}

    def body(recorder):
        for step in range(6):
            with recorder.step():
                model(torch.ones(2, 3)).sum().backward()
                seen[step] = sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model)

    dump = record(model, body, steps="1,4")
    assert seen == {0: 0, 1: 6, 2: 0, 3: 0, 4: 6, 5: 0}
    calls = [[(c.scope, c.call) for c in dump.calls if c.step == step] for step in (1, 4)]
    assert calls[0] == calls[1] == [("0", 0), ("1", 0), ("2", 0), ("", 0)]
    texts = [sorted(str(r.key).partition("/")[2] for r in dump.records if r.key.step == step) for step in (1, 4)]
    assert texts[0] == texts[1]
    assert not any("came or were replaced" in note for note in dump.notes)
    assert {point.step for point in dump.series} == set(range(6))
