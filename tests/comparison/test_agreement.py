"""Two kinds of evidence on one record, and runs of which one holds nothing."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from precision_align.core.errors import NothingCaptured
from precision_align.recording.session import capture
from precision_align.storage.memory import MemorySink
from precision_align.workflows.comparing import compare
from precision_align.workflows.lockstep import lockstep

torch.set_num_threads(1)
X = torch.randn(16, 8, generator=torch.Generator().manual_seed(0))


class Cancel(nn.Module):
    """Adds a large number and takes it off again, in one or in two parts: rounding shows much of it."""

    def __init__(self, parts, gain):
        super().__init__()
        self.parts, self.gain = parts, gain

    def forward(self, x):
        for _ in range(self.parts):
            x = x + 3e5 / self.parts
        return (x - 3e5) * self.gain


class Net(nn.Module):
    def __init__(self, parts=1, gain=1.0):
        super().__init__()
        torch.manual_seed(0)
        self.up, self.cancel = nn.Linear(8, 16), Cancel(parts, gain)

    def forward(self, x):
        return self.cancel(self.up(x))


def record(module, force=None):
    sink = MemorySink()
    with capture(module, None, sink=sink, force=force) as recorder, recorder.step():
        module(X)
    return sink.dump()


@pytest.mark.parametrize("forced", [True, False])
def test_a_replay_that_passes_what_the_runs_alone_would_fail_is_shown(forced):
    reference = record(Net())
    report = compare(reference, record(Net(parts=3), reference if forced else None), replay=Net)
    assert report.verdict == "aligned"
    assert [note for note in report.notes if "evidence disagrees on" in note and "cancel" in note]
    same = compare(reference, record(Net(), reference if forced else None), replay=Net)
    assert not any("disagrees" in note for note in same.notes)


def test_both_kinds_of_evidence_are_named_where_they_agree():
    reference = record(Net())
    report = compare(reference, record(Net(gain=1.5), force=reference), replay=Net)
    assert report.first.scope == "cancel"
    assert report.first.evidence.startswith("float64 replay and forced comparison, on the reference's own inputs")
    assert not any("disagrees" in note for note in report.notes)


def never_call(module, inputs):
    return None if module.tag == "reference" else module(inputs)


@pytest.mark.parametrize(("gain", "verdict"), [(1.0, "aligned"), (1.5, "diverged")])
def test_a_reference_that_recorded_nothing_leaves_its_code(gain, verdict):
    reference, candidate = Net(), Net(gain=gain)
    reference.tag, candidate.tag = "reference", "candidate"
    report = lockstep(reference, candidate, X, step=never_call)
    assert (report.verdict, report.first and report.first.scope) == (verdict, "cancel" if gain > 1 else None)
    assert report.notes[0].startswith("the reference recorded not one call, so the candidate is judged by")
    assert "no module call was seen" in report.notes[0]


def test_without_its_code_that_is_an_error_which_says_so():
    sink = MemorySink()
    with pytest.raises(NothingCaptured), capture(Net(), None, sink=sink):
        pass
    with pytest.raises(NothingCaptured, match=r"the reference's dump holds not one call.*no module call was seen"):
        compare(sink.dump(), record(Net()))
