"""A saved report under other rules gives what a comparison under these rules gives."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

from precision_align.cli.app import main
from precision_align.comparison.rules import load_rules
from precision_align.core.errors import RuleError
from precision_align.recording.session import capture
from precision_align.reporting.report import Report
from precision_align.storage.memory import MemorySink
from precision_align.workflows.comparing import compare
from precision_align.workflows.rejudging import rejudge

torch.set_num_threads(1)


class Scaled(nn.Linear):
    gain = 1.0

    def forward(self, x):
        return super().forward(x) * self.gain


class Net(nn.Module):
    def __init__(self, **gains):
        super().__init__()
        torch.manual_seed(0)
        self.up, self.middle, self.down = Scaled(8, 16), nn.LayerNorm(16), Scaled(16, 8)
        for name, gain in gains.items():
            getattr(self, name).gain = gain

    def forward(self, x):
        return self.down(torch.relu(self.middle(self.up(x))))


def record(**gains):
    sink, module = MemorySink(), Net(**gains)
    with capture(module, None, sink=sink) as recorder, recorder.step():
        module(torch.randn(16, 8, generator=torch.Generator().manual_seed(0))).square().mean().backward()
    return sink.dump()


RULES = {
    "nothing": "",
    "the first place": '[[rule]]\nscope = "up"\nstatus = "ignore"\nreason = "on purpose"\n',
    "everything": '[[rule]]\nscope = "*"\nstatus = "warn"\nreason = "all known"\n',
    "a loose threshold": '[[rule]]\nmetric = "rel_l2"\nat_most = 0.02\nstatus = "warn"\nreason = "2 % will do"\n',
    "a tight threshold": '[[rule]]\nwhen = "propagated"\nmetric = "raw_rel_l2"\nabove = 1e-9\nstatus = "fail"\n'
    'reason = "bit for bit"\n',
}


@pytest.fixture(scope="module")
def dumps():
    return record(), record(up=1.01, down=1.1)


@pytest.fixture(scope="module")
def reports(dumps, tmp_path_factory):
    """Name of the rules -> (rules, report of a comparison under them)."""
    found = {}
    for name, text in RULES.items():
        path = tmp_path_factory.mktemp("rules") / "rules.toml"
        path.write_text(text, "utf-8")
        rules = load_rules(path)
        found[name] = rules, compare(*dumps, replay=Net, rules=rules)
    return found


def summarise(report):
    first = report.first and (report.first.scope, report.first.site, report.first.phase, report.first.kind)
    places = [(found.scope, found.phase, found.kind, found.key) for found in report.frontier]
    return report.verdict, first, places, report.coverage, report.records


@pytest.mark.parametrize("saved", RULES)
@pytest.mark.parametrize("name", RULES)
def test_from_any_saved_report_to_any_rules(reports, saved, name):
    rules, expected = reports[name]
    found = rejudge(reports[saved][1], rules)
    assert summarise(found) == summarise(expected)
    further = {note for note in found.notes if note not in expected.notes}
    assert all(note.startswith("judged again from saved metrics: explanations") for note in further)
    assert set(expected.notes) <= set(found.notes)


def test_the_rules_do_something(reports):
    found = {name: report.first and report.first.scope for name, (_, report) in reports.items()}
    assert found == {
        "nothing": "up",
        "the first place": "down",
        "everything": None,
        "a loose threshold": "down",
        "a tight threshold": "up",
    }
    assert len(reports["a tight threshold"][1].frontier) > len(reports["nothing"][1].frontier)


def test_explanations_stay_where_the_place_does(reports):
    saved = reports["nothing"][1]
    assert rejudge(saved, reports["nothing"][0]).first == saved.first
    assert saved.first.explanations
    assert any("judged again" in note for note in rejudge(saved, reports["the first place"][0]).notes)


def test_a_metric_that_was_not_saved_is_said(reports, tmp_path):
    rules = tmp_path / "rules.toml"
    rules.write_text('[[rule]]\nmetric = "psnr"\nabove = 3\nstatus = "ignore"\nreason = "x"\n', "utf-8")
    found = rejudge(reports["nothing"][1], rules)
    assert any(note.startswith("a rule on psnr says nothing of") for note in found.notes)
    assert found.verdict == "diverged"


def test_from_the_command_line(reports, tmp_path, capsys):
    saved, rules, page = (str(tmp_path / name) for name in ("report.json", "rules.toml", "again.json"))
    reports["nothing"][1].save(saved)
    assert main(["report", saved]) == 0
    for name, status in (("nothing", 1), ("everything", 0), ("the first place", 1)):
        (tmp_path / "rules.toml").write_text(RULES[name], "utf-8")
        assert main(["report", saved, "--rules", rules, "-o", page]) == status
    assert "down" in capsys.readouterr().out
    assert Report.load(page).first.scope == "down"
    data = json.loads((tmp_path / "report.json").read_text("utf-8"))
    del data["roots"]
    (tmp_path / "report.json").write_text(json.dumps(data), "utf-8")
    (tmp_path / "rules.toml").write_text(RULES["everything"], "utf-8")
    assert main(["report", saved, "--rules", rules]) == 3, "without outermost modules there is no 'aligned'"


@pytest.mark.parametrize("line", ['metric = "z"', "above = 1", "metric = 3\nabove = 1", 'metric = "z"\nabove = "1"'])
def test_a_threshold_is_a_metric_and_a_number(tmp_path, line):
    rules = tmp_path / "rules.toml"
    rules.write_text(f'[[rule]]\nstatus = "warn"\nreason = "x"\n{line}\n', "utf-8")
    with pytest.raises(RuleError, match=r"threshold|numbers"):
        load_rules(rules)
