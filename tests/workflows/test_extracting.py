"""From a recorded call to a script and a case: they show the fault that was recorded, and none where none was."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from programs import run_python
from torch import nn

import precision_align as pa
from precision_align.core.errors import UsageError
from precision_align.library.runner import run_cases
from precision_align.storage.opening import open_dump
from precision_align.workflows.extracting import extract_case

ROOT = Path(__file__).resolve().parents[2]


class Scaled(nn.Module):
    def forward(self, x: torch.Tensor, *, factor: float = 1.0) -> torch.Tensor:
        return x * factor


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(8, 16), nn.BatchNorm1d(16)
        self.act, self.last, self.scaled = nn.GELU(), nn.Linear(16, 4, bias=False), Scaled()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.scaled(self.last(self.act(self.norm(self.first(x)))), factor=2.0)


@pytest.fixture(scope="module")
def dump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One step in bfloat16 whose GELU is off by one percent."""
    path = tmp_path_factory.mktemp("extracting") / "dump"
    torch.manual_seed(0)
    model = Net().to(torch.bfloat16)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nn.GELU, "forward", lambda self, x: nn.functional.gelu(x) * 1.01)
        sources = ("modules", "gradients", "parameters", "operators")
        with pa.capture(model, path, sources=sources) as recorder, recorder.step():
            model(torch.randn(5, 8, dtype=torch.bfloat16)).square().mean().backward()
    return path


def extract(dump: Path, words: str, folder: Path, name: str = "mine", **options: Any) -> Path:
    with open_dump(dump) as opened:
        (record,) = (r for r in opened.records if all(word in str(r.key) for word in words.split()))
        return extract_case(opened, record, folder, name, **options)[0]


def run_script(script: Path) -> dict[str, float]:
    done = run_python(script, env={key: value for key, value in os.environ.items() if key != "PYTHONPATH"})
    assert done.returncode == 0, done.stderr
    found = re.findall(r"^(\w+): largest error against float64 (\S+), largest value (\S+)$", done.stdout, re.MULTILINE)
    return {title: float(error) / float(value) for title, error, value in found}


def test_the_script_shows_the_recorded_fault_and_that_this_machine_has_none(dump: Path, tmp_path: Path) -> None:
    script = extract(dump, "module/act forward/output", tmp_path)
    assert len(script.read_text().splitlines()) <= 40
    errors = run_script(script)
    assert errors["recorded"] > 0.008
    assert errors["cpu"] < 0.004
    assert extract(dump, "aten.gelu.default forward/output", tmp_path, "operator").exists()


@pytest.mark.parametrize(
    "words",
    ["module/norm forward/output", "module/first gradient/parameter.weight"],
)
def test_a_sound_record_agrees_with_float64_forward_and_backward(dump: Path, tmp_path: Path, words: str) -> None:
    script = extract(dump, words, tmp_path)
    assert len(script.read_text().splitlines()) <= 40
    assert max(run_script(script).values()) < 0.01


def test_the_case_runs_and_catches_a_wrong_replacement(dump: Path, tmp_path: Path) -> None:
    extract(dump, "module/act forward/output", tmp_path)
    extract(dump, "module/first gradient/parameter.bias", tmp_path, "linear")
    assert run_cases("*", library=tmp_path).passed
    assert run_cases("mine", library=tmp_path, replacement=lambda args_0: nn.functional.gelu(args_0)).passed
    wrong = run_cases("mine", library=tmp_path, replacement=lambda args_0: nn.functional.gelu(args_0) * 1.01)
    assert not wrong.passed


def test_a_module_of_the_users_needs_a_factory(dump: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no stock module"):
        extract(dump, "module/scaled forward/output", tmp_path)
    (tmp_path / "factories.py").write_text(
        "from torch import nn\nclass S(nn.Module):\n    forward = lambda s, x, *, factor: x * factor\n"
    )
    script = extract(dump, "module/scaled forward/output", tmp_path, module="factories:S")
    script.write_text(
        script.read_text().replace("import sys\n", f"import sys\nsys.path.insert(0, {str(tmp_path)!r})\n")
    )
    assert max(run_script(script).values()) < 0.01


def test_what_cannot_be_extracted_says_why(dump: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="belongs to no call"):
        extract(dump, "parameters/first parameter/weight", tmp_path)
    with pytest.raises(UsageError, match="cannot name a case folder"):
        extract(dump, "module/act forward/output", tmp_path, "no name")
    (tmp_path / "op_cases" / "mine").mkdir(parents=True)
    with pytest.raises(UsageError, match="exists already"):
        extract(dump, "module/act forward/output", tmp_path)
    model = nn.Sequential(nn.GELU())
    with pa.capture(model, tmp_path / "poorer", payload="statistics") as recorder, recorder.step():
        model(torch.randn(3))
    with pytest.raises(UsageError, match="payload full"):
        extract(tmp_path / "poorer", "module/0 forward/output", tmp_path, "statistics")
