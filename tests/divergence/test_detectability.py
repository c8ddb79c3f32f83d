"""How small an error would have been seen, of each module and of all."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

import precision_align as pa
from precision_align.core.results import Limit, RecordResult
from precision_align.core.terms import Phase, Role, Site, Status, Verdict
from precision_align.divergence.detectability import find_detectable, measure_detectability
from precision_align.reporting.report import Report
from precision_align.storage.memory import MemorySink

torch.set_num_threads(1)


def row(scope="a", status=Status.PASS, evidence="replay", metrics=None, limit=None):
    return RecordResult(
        "k",
        scope,
        Site.MODULE,
        Phase.FORWARD,
        Role.OUTPUT,
        "",
        0,
        0,
        0,
        0,
        "Linear",
        status,
        evidence,
        metrics or {},
        limit,
    )


MEASURED = {"z": 0.5, "detectable_z": 0.1, "detectable_rho": 0.02, "detectable_bias": 0.03}


@pytest.mark.parametrize(
    ("one", "expected"),
    [
        (row(metrics=MEASURED), (0.02, "rho")),
        (row(status=Status.WARN, metrics=MEASURED), (0.02, "rho")),
        (row(status=Status.PROPAGATED, evidence="sampled", metrics=MEASURED), (0.02, "rho")),
        (row(evidence="hash"), (0.0, "")),
        (row(evidence="raw", metrics={"raw_max_abs": 1.0}, limit=Limit("raw_over_max", 1e-5, "")), (1e-5, "raw")),
        (row(evidence="sketch", metrics={"raw_power": 0.02}, limit=Limit("x", 0.01, "")), (0.02, "sketch")),
        (row(status=Status.FAIL, metrics=MEASURED), None),
        (row(status=Status.INCONCLUSIVE, evidence=""), None),
        (row(evidence="structure"), None),
    ],
)
def test_of_one_record(one, expected):
    assert find_detectable(one) == expected


def test_the_few_worst_records_are_named_and_do_not_speak_for_all():
    rows = [row("good", metrics={"z": 0.1, "detectable_z": 0.001}) for _ in range(99)]
    rows += [row("bad", metrics={"z": 0.1, "detectable_z": 0.5}), row("equal", evidence="hash")]
    whole, modules = measure_detectability(rows)
    assert (whole.records, whole.exact, whole.error, whole.worst, whole.place) == (101, 1, 0.001, 0.5, "bad")
    assert [(one.scope, one.worst) for one in modules] == [("good", 0.001), ("bad", 0.5), ("equal", 0.0)]


class Net(nn.Module):
    def __init__(self, factor=1.0):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(64, 64), nn.Linear(64, 64)
        forward = self.first.forward
        self.first.forward = lambda x: forward(x) * factor

    def forward(self, x):
        return self.second(torch.tanh(self.first(x)))


def record(model, noisy):
    """A candidate with other roundings of the first layer."""
    if noisy:
        forward, weight, bias = model.first.forward, model.first.weight, model.first.bias
        scale = forward(torch.ones(1, 64)) / (torch.ones(1, 64) @ weight.T + bias)
        model.first.forward = lambda x: nn.functional.linear(x.flip(1), weight.flip(1), bias) * scale.mean()
    sink = MemorySink()
    with pa.capture(model, None, sink=sink) as recorder, recorder.step():
        model(torch.randn(128, 64, generator=torch.Generator().manual_seed(1)))
    return sink.dump()


def test_an_error_of_the_size_that_a_report_names_is_found_and_a_smaller_one_is_not():
    report = pa.compare(record(Net(), False), record(Net(), True))
    assert report.verdict == Verdict.ALIGNED
    (first,) = (one for one in measure_detectability(report.records)[1] if one.scope == "first")
    assert 0 < first.worst < 1e-4
    for times, verdict in ((2.0, Verdict.DIVERGED), (0.3, Verdict.ALIGNED)):
        assert pa.compare(record(Net(), False), record(Net(1 + times * first.worst), True)).verdict == verdict


def test_all_reports_say_it(tmp_path):
    report = pa.compare(record(Net(), False), record(Net(), True))
    assert "would have seen relative errors >=" in str(report)
    data = json.loads(report.save(tmp_path / "report.json").read_text())["detectability"]
    assert data["modules"]["first"]["worst"] > 0
    assert data["modules"]["first"]["test"] in ("RMS ratio", "element-wise bound")
    page = report.save(tmp_path / "report.html").read_text()
    assert "How small an error would have been seen" in page
    assert Report.load(tmp_path / "report.json") == report
    same = pa.compare(record(Net(), False), record(Net(), False))
    assert "no error hides in them" in str(same)
