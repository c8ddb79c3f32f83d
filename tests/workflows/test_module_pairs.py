"""Modules that names leave open: unresolved, inserted, removed, and what a rename file says."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

from precision_align.cli.app import main
from precision_align.recording.session import capture
from precision_align.reporting.html import render_html
from precision_align.reporting.markdown import render_markdown
from precision_align.storage.memory import MemorySink
from precision_align.workflows.comparing import compare

torch.set_num_threads(1)


class Small(nn.Module):
    """Names -> modules, called one after the other."""

    def __init__(self, **modules):
        super().__init__()
        for name, module in modules.items():
            setattr(self, name, module)

    def forward(self, x):
        for module in self.children():
            x = module(x)
        return x


def linear(seed, inner, outer, gain=1.0):
    torch.manual_seed(seed)
    module = nn.Linear(inner, outer)
    module.weight.data *= gain
    return module


def capture_small(folder=None, **modules):
    sink, model = None if folder else MemorySink(), Small(**modules)
    with capture(model, folder, sink=sink) as recorder, recorder.step():
        model(torch.randn(4, 8, generator=torch.Generator().manual_seed(0)))
    return str(folder) if folder else sink.dump()


def test_what_could_be_either_stays_unresolved_and_what_is_one_sides_is_said():
    reference = capture_small(up=linear(0, 8, 6), one=nn.Identity(), two=nn.Identity(), down=linear(1, 6, 8))
    candidate = capture_small(up=linear(0, 8, 6), only=nn.Identity(), down=linear(1, 6, 8), more=linear(2, 8, 5))
    report = compare(reference, candidate)
    ways = {(pair.candidate or pair.reference): str(pair.way) for pair in report.modules}
    assert ways == {
        "(root)": "matched",
        "up": "matched",
        "down": "matched",
        "only": "unresolved",
        "more": "inserted",
        "one": "unresolved",
        "two": "unresolved",
    }
    assert "modules: 3 matched, 1 inserted, 3 unresolved" in report.notes
    assert any(note.startswith("modules unresolved: only; one; two") for note in report.notes)
    assert "| `only` |  | unresolved |" in render_markdown(report)
    page = render_html(report)
    assert ">inserted<" in page.replace("</td>", "<")
    again = compare(candidate, reference)
    assert {pair.reference: str(pair.way) for pair in again.modules if not pair.candidate}["more"] == "removed"


def test_a_rename_file(tmp_path, capsys):
    """Two modules of the same shape that changed names with each other, and one with the other's name."""
    names = {"reference": ("a", "b"), "candidate": ("b", "c")}
    paths = {}
    for side, (first, second) in names.items():
        made = {first: linear(0, 8, 8), second: linear(1, 8, 8, 1.5 if side == "candidate" else 1.0)}
        paths[side] = capture_small(tmp_path / side, **made)
    rename = tmp_path / "rename.toml"
    rename.write_text('[modules]\n"b" = "a"\n"c" = "b"\n', "utf-8")
    saved = tmp_path / "report.json"
    arguments = ["compare", paths["reference"], paths["candidate"], "--rename", str(rename), "-o", str(saved)]
    assert main(arguments) == 1
    assert "the candidate's c" in " ".join(capsys.readouterr().out.split())
    report = json.loads(saved.read_text("utf-8"))
    assert {(pair["candidate"], pair["reference"], pair["way"]) for pair in report["modules"]} == {
        ("(root)", "(root)", "matched"),
        ("b", "a", "mapped"),
        ("c", "b", "mapped"),
    }
    assert (report["first"]["scope"], report["first"]["site"]) == ("b", "parameters")


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("[other]", "unknown keys other"),
        ('[modules]\n"a.*" = "b"', "* stands for one whole part"),
        ('[modules]\n"a*" = "b*"', "* stands for one whole part"),
        ("[modules]\na = 1", "a table of texts"),
        ("[modules", "cannot be read"),
        ('[modules]\nup = "down"\nmore = "down"', "one name: down"),
    ],
)
def test_a_wrong_rename_file_is_said(tmp_path, text, part, capsys):
    reference = capture_small(tmp_path / "a", up=linear(0, 8, 6), down=linear(1, 6, 8))
    candidate = capture_small(tmp_path / "b", up=linear(0, 8, 6), more=linear(1, 6, 8))
    rename = tmp_path / "rename.toml"
    rename.write_text(text, "utf-8")
    assert main(["compare", reference, candidate, "--rename", str(rename)]) == 2
    assert part in " ".join(capsys.readouterr().err.split())


class Hidden(Small):
    """Holds a module where torch does not see it: its weights are never updated."""

    def __init__(self, hidden, **modules):
        super().__init__(**modules)
        self.held = [hidden]

    def forward(self, x):
        return super().forward(self.held[0](x))


def train(model):
    sink, optimizer = MemorySink(), torch.optim.SGD(model.parameters(), 0.1)
    with capture(model, None, sink=sink, optimizer=optimizer) as recorder, recorder.step():
        model(torch.randn(4, 8, generator=torch.Generator().manual_seed(0))).square().mean().backward()
        optimizer.step()
    return sink.dump()


def test_a_module_that_is_cut_otherwise_is_missing_and_one_that_was_lost_is_a_fault():
    reference = train(Small(up=linear(0, 8, 6), down=linear(1, 6, 8)))
    whole, up = nn.Bilinear(8, 1, 6), linear(0, 8, 6)  # of another stock class, so that it is no partner by its place
    whole.forward = lambda x: up(x) + 0 * nn.Bilinear.forward(whole, x, x[:, :1])
    report = compare(reference, train(Small(other=whole, down=linear(1, 6, 8))))
    notes = {row.note for row in report.records if row.scope == "" and row.status == "missing"}
    assert (report.first, notes) == (None, {"the candidate has no such module"})
    lost = compare(reference, train(Hidden(linear(0, 8, 6), down=linear(1, 6, 8))))
    assert lost.verdict == "diverged"
    assert "no gradient reached" in lost.first.evidence
