"""A session changes nothing: bits, graphs, random numbers, objects."""

from __future__ import annotations

import pytest

from precision_align.recording.session import capture

pytestmark = pytest.mark.live


def test_training_is_bit_equal_with_and_without_capture(kind, run_training, sink):
    plain, _, _ = run_training(kind)
    watched, model, recorder = run_training(
        kind, lambda model, optimizer: capture(model, None, sink=sink, optimizer=optimizer)
    )
    assert watched == plain
    assert not recorder.notes
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    dump = sink.dump()
    assert len({record.key for record in dump.records}) == len(dump.records)
    roles = {(str(record.key.source), str(record.key.role)) for record in dump.records}
    expected = {("module", "input"), ("module", "output"), ("module", "gradient"), ("parameters", "parameter")}
    assert expected | {("optimizer", "gradient"), ("optimizer", "parameter"), ("point", "loss")} <= roles
