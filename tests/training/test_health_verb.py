"""``precision-align health`` as a process, and its page."""

from __future__ import annotations

import json
import string
import subprocess
from pathlib import Path

import pytest
from programs import run_python

from precision_align.reporting.health import describe_health
from precision_align.reporting.languages import TEXTS
from precision_align.reporting.resultpages import render_page
from precision_align.training.health.findings import Finding, HealthReport, Severity

pytest.importorskip("torch")

SCRIPT = """
import sys
import torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
held = model.parameters() if sys.argv[1] == "clean" else model[0].parameters()
optimizer = torch.optim.AdamW(held, 1e-3)
for step in range(3):
    loss = model(torch.randn(16, 8)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def run_health(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return run_python("-m", "precision_align", "health", *words, cwd=folder)


def test_a_script_is_recorded_and_checked(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    clean = run_health(tmp_path, "clean", "--run", "train.py clean")
    assert clean.returncode == 0, clean.stderr
    assert clean.stdout.startswith("HEALTHY")
    broken = run_health(tmp_path, "broken", "--run", "train.py broken", "-o", "page.html", "--json")
    result = json.loads(broken.stdout)
    assert broken.returncode == 1
    assert {(found["code"], found["place"]) for found in result["findings"]} == {
        ("not owned", "2.weight"),
        ("not owned", "2.bias"),
    }
    page = (tmp_path / "page.html").read_text("utf-8").replace("<wbr>", "")
    assert "2.bias" in page
    assert "不属于任何优化器" in page


def test_mistakes(tmp_path: Path) -> None:
    assert run_health(tmp_path, "nowhere").returncode == 3
    done = run_health(tmp_path, "nowhere", "--replicas", "a;b")
    assert (done.returncode, "--replicas" in done.stderr) == (2, True)
    assert run_health(tmp_path, "nowhere", "-o", "page.txt").returncode == 2


CODES = sorted(key.partition("health.code.")[2] for key in TEXTS if key.startswith("health.code."))


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize("code", CODES)
def test_every_finding_reads_well_in_both_languages(code: str, language: str) -> None:
    fields = {name for text in TEXTS[f"health.code.{code}"] for _, name, _, _ in string.Formatter().parse(text) if name}
    values = {name: "x" if name in ("operator", "path", "dtype") else 1.5 for name in fields}
    finding = Finding(code, Severity.FAULT, 3, place="layer.weight", count=2, values={**values, "record": "key"})
    report = HealthReport("dump", (0, 3), (0,), (finding,), {"updates": 2})
    text = render_page(describe_health(report, language), 100)
    assert "layer.weight" in text
    assert "{" not in text
