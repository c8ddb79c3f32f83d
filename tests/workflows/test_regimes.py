"""float32 semantics and native precision in one report: what the two verdicts mean together."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from precision_align.cli.app import main
from precision_align.core.errors import UsageError
from precision_align.recording.session import capture
from precision_align.storage.memory import MemorySink
from precision_align.workflows.regimes import compare_regimes, run_regimes

torch.set_num_threads(1)


class Softmax(nn.Module):
    """``low``: a 16-bit result is truncated instead of rounded; float32 is the same."""

    def __init__(self, low):
        super().__init__()
        self.low = low

    def forward(self, x):
        wide = F.softmax(x.float(), -1)
        if self.low and x.dtype == torch.bfloat16:
            wide = (wide.view(torch.int32) & -65536).view(torch.float32)
        return wide.to(x.dtype)


class Net(nn.Module):
    def __init__(self, low=False, gelu="none", eps=1e-5):
        super().__init__()
        torch.manual_seed(0)
        self.up, self.act, self.norm = nn.Linear(32, 128), nn.GELU(gelu), nn.LayerNorm(128, eps=eps)
        self.softmax, self.down = Softmax(low), nn.Linear(128, 8)

    def forward(self, x):
        return self.down(self.softmax(self.norm(self.act(self.up(x)))))


X = torch.randn(64, 32, generator=torch.Generator().manual_seed(1)).bfloat16()


def make(**quirks):
    return lambda: Net(**quirks).bfloat16()


CASES = {
    "aligned": ({}, "aligned", (None, None), "aligned"),
    "precision": ({"low": True}, "precision", (None, "softmax"), "diverged"),
    "semantics": ({"gelu": "tanh"}, "semantics", ("act", "act"), "diverged"),
    "elsewhere": ({"eps": 2e-5, "low": True}, "elsewhere", ("norm", "softmax"), "diverged"),
    "hidden": ({"eps": 2e-5}, "hidden", ("norm", None), "diverged"),
}


@pytest.mark.parametrize("case", CASES)
def test_live(case):
    quirks, conclusion, places, verdict = CASES[case]
    report = run_regimes(make(), make(**quirks), X)
    assert (report.conclusion, report.verdict) == (conclusion, verdict), str(report)
    found = tuple(one.first and one.first.scope for one in (report.float32, report.native))
    assert found == places
    assert not report.notes


def record(model, inputs, folder):
    with capture(model, str(folder)) as recorder, recorder.step():
        model(inputs).float().square().mean().backward()
    return str(folder)


def test_from_dumps_at_the_command_line(tmp_path, capsys):
    pairs = {}
    for name, dtype in (("float32", torch.float32), ("native", torch.bfloat16)):
        sides = (("reference", Net().to(dtype)), ("candidate", Net(low=True).to(dtype)))
        pairs[name] = [record(model, X.to(dtype), tmp_path / f"{name}-{side}") for side, model in sides]
    saved, page = tmp_path / "both.json", tmp_path / "both.html"
    command = ["regimes", "--float32", *pairs["float32"], "--native", *pairs["native"], "--replay"]
    (tmp_path / "net.py").write_text(
        "from importlib.util import module_from_spec, spec_from_file_location\n"
        f"spec = spec_from_file_location('regime_models', {__file__!r})\n"
        "module = module_from_spec(spec); spec.loader.exec_module(module)\n"
        "def make():\n    return module.Net()\n",
        "utf-8",
    )
    command.append(f"{tmp_path / 'net.py'}:make")
    assert main([*command, "-o", str(saved)]) == 1
    out = " ".join(capsys.readouterr().out.split())
    assert "Precision, not semantics: float32 is aligned, the native dtype diverges at softmax." in out
    data = json.loads(saved.read_text("utf-8"))
    assert (data["conclusion"], data["float32"]["verdict"], data["native"]["first"]["scope"]) == (
        "precision",
        "aligned",
        "softmax",
    )
    assert main([*command, "-o", str(page), "--lang", "zh"]) == 1
    assert "是精度问题" in page.read_text("utf-8")


def test_from_code_with_a_training_step(tmp_path, capsys):
    code = tmp_path / "both_sides.py"
    code.write_text(
        "import torch\nfrom torch import nn\n"
        "class Loud(nn.Linear):\n    def forward(self, x):\n        return super().forward(x) * 1.02\n"
        "def build(kind):\n    torch.manual_seed(0)\n"
        "    return nn.Sequential(nn.Linear(8, 8), kind(8, 2)).bfloat16()\n"
        "def reference():\n    return build(nn.Linear)\n"
        "def candidate():\n    return build(Loud)\n"
        "def inputs():\n    return torch.ones(4, 8, dtype=torch.bfloat16)\n"
        "def step(module, inputs):\n    module(inputs).float().sum().backward()\n",
        "utf-8",
    )
    assert main(["regimes", "--code", str(code), "--json"]) == 1
    data = json.loads(capsys.readouterr().out)
    assert (data["conclusion"], data["float32"]["first"]["scope"]) == ("semantics", "1")
    assert "backward" in data["native"]["coverage"]


@pytest.mark.parametrize(
    "options",
    [[], ["--float32", "a", "b"], ["--code", "x.py", "--native", "a", "b"], ["--code", "x.py", "--replay", "y"]],
)
def test_half_a_question_is_wrong_usage(options, capsys):
    assert main(["regimes", *options]) == 2
    assert "--float32 REF CAND and --native REF CAND" in " ".join(capsys.readouterr().err.split())


class Low(nn.Module):
    def forward(self, x):
        return x.bfloat16()


class Wide(nn.Module):
    def forward(self, x):
        return x.float()


def build_mixed():
    torch.manual_seed(0)
    return nn.Sequential(Low(), Wide(), nn.Linear(32, 4))


def test_what_makes_a_regime_no_pure_one_is_said():
    low = run_regimes(build_mixed, build_mixed, X.float())
    start = "the candidate gives results below float32 in its float32 run, in 1 modules, first in 0"
    assert [note for note in low.notes if note.startswith(start)]
    wide = run_regimes(Net, Net, X.float())
    assert wide.conclusion == "aligned"
    assert any("the second comparison is one of float32, too" in note for note in wide.notes)
    with pytest.raises(UsageError, match="a function that makes"):
        run_regimes(Net(), Net(), X)


def capture_in_memory(model, inputs, **options):
    sink = MemorySink()
    with capture(model, None, sink=sink, **options) as recorder, recorder.step():
        model(inputs)
    return sink.dump()


def test_random_numbers_and_no_verdict_are_told_from_faults():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.Dropout(0.5))
    same = capture_in_memory(Net(), X.float())
    first, second = (capture_in_memory(model, X.float()) for _ in range(2))
    report = compare_regimes((first, second), (same, same))
    assert (report.conclusion, report.verdict) == ("random", "diverged")
    assert "seed both sides alike" in " ".join(str(report).split())
    bare = capture_in_memory(Net(), X.float(), select=["act"])
    report = compare_regimes((bare, bare), (same, same))
    assert (report.conclusion, report.verdict) == ("open", "not comparable")
    assert "too little can be said of float32" in " ".join(str(report).split())
