"""The command in a process of its own, and small dumps written by hand."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from programs import make_environment, run_python

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Outcome:
    """What a command left behind."""

    status: int
    out: str
    err: str


class Command:
    """command("show", path, ...) -> Outcome. No traceback may ever be seen."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, *words: object, **environment: str) -> Outcome:
        return self.run_python("-m", "precision_align", *words, **environment)

    def run_python(self, *words: object, **environment: str) -> Outcome:
        """A program; see ``programs``."""
        done = run_python(*words, cwd=self.folder, env=self.environment(**environment))
        return check_outcome(Outcome(done.returncode, done.stdout, done.stderr), environment)

    def environment(self, **more: str) -> dict[str, str]:
        """What the command runs under: nothing of this process's language."""
        kept = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR") if name in os.environ}
        path = make_environment(PYTHONPATH=more.pop("PYTHONPATH", ""))["PYTHONPATH"]
        return {**kept, "LANG": "C.UTF-8", "OMP_NUM_THREADS": "1", **more, "PYTHONPATH": path}

    def launch(self, program: list[str], words: tuple[object, ...], environment: dict[str, str]) -> Outcome:
        """Any program, in a real process."""
        done = subprocess.run(
            [*program, *(str(word) for word in words)],
            cwd=self.folder,
            env=self.environment(**environment),
            capture_output=True,
            timeout=300,
            check=False,
        )
        outcome = Outcome(
            done.returncode, done.stdout.decode("utf-8", "replace"), done.stderr.decode("utf-8", "replace")
        )
        return check_outcome(outcome, environment)


def check_outcome(outcome: Outcome, environment: dict[str, str]) -> Outcome:
    if "PRECISION_ALIGN_TRACEBACK" not in environment:
        assert "Traceback" not in outcome.out + outcome.err, outcome.err
    return outcome


@pytest.fixture
def command(tmp_path: Path) -> Command:
    return Command(tmp_path)


@pytest.fixture(scope="session")
def findings() -> ModuleType:
    """The hand-made findings of the reporting tests."""
    name = "reporting_findings"
    if name not in sys.modules:
        path = ROOT / "tests" / "reporting" / "fixtures" / "findings.py"
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    return sys.modules[name]


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Two recorded runs of one small model, "reference" and "candidate"; the candidate's GELU is 2 % too large."""
    pytest.importorskip("torch")
    folder = tmp_path_factory.mktemp("runs")
    (folder / "model.py").write_text(MODEL, encoding="utf-8")
    for side in ("reference", "candidate"):
        done = run_python("model.py", side, cwd=folder)
        assert done.returncode == 0, done.stderr
    return folder


MODEL = """
import sys

import torch
from torch import nn

import precision_align as pa


class Wide(nn.Module):
    def forward(self, x):
        return nn.functional.gelu(x) * 1.02


def build():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4))


def main(side):
    model = build()
    if side == "candidate":
        nn.GELU.forward = Wide.forward
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    generator = torch.Generator().manual_seed(1)
    with pa.capture(model, side, optimizer=optimizer) as recorder:
        for _ in range(2):
            with recorder.step():
                loss = model(torch.randn(32, 8, generator=generator)).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()


if __name__ == "__main__":
    main(sys.argv[1])
"""
