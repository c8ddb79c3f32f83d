"""``capture`` with limits of disk and memory, and ``compare`` of another tool's files: processes of their own."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import numpy as np
import pytest
from programs import run_python

from precision_align.storage.opening import open_dump

SCRIPT = """
import torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.GELU(), torch.nn.Linear(32, 8))
optimizer = torch.optim.Adam(model.parameters())
for step in range(6):
    x = torch.randn(4, 8)
    try:
        (model(x) - x).square().mean().backward()
    except Exception:
        print("caught")
    optimizer.step()
    optimizer.zero_grad()
print("finished")
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return run_python("-m", "precision_align", *words, cwd=folder)


def test_a_dump_that_could_not_be_written_is_an_error_and_the_script_goes_on(tmp_path: Path, script: Path) -> None:
    done = run(tmp_path, "capture", "-o", "d", "--reserve-free", "900000GB", "--", script.name)
    assert "finished" in done.stdout
    assert done.returncode == 3
    assert "PA207" in done.stderr
    assert "records of steps 0 to 5 could not be written and are lost" in done.stderr
    assert done.stderr.count("the disk is full") == 1
    assert "tensors\n" not in done.stderr  # nothing was recorded: no number of tensors


def test_a_dry_run_writes_nothing_and_ends_early(tmp_path: Path, script: Path) -> None:
    done = run(tmp_path, "capture", "-o", "d", "--dry-run", "--", script.name)
    assert done.returncode == 0, done.stderr
    assert "finished" not in done.stdout
    assert "caught" not in done.stdout
    assert "a step and rank" in done.stdout
    assert "are free at d" in done.stdout
    assert not (tmp_path / "d").exists()
    assert "all 1 ranks" in done.stdout
    command = ("capture", "-o", "d", "--dry-run", "--world", "1000/8", "--json", "--", script.name)
    counted = json.loads(run(tmp_path, *command).stdout)
    assert run(tmp_path, "capture", "-o", "d", "--", script.name).returncode == 0
    size = (tmp_path / "d/rank00000/step00000001-00000001.part000.h5").stat().st_size
    assert counted["step"] == 1  # the first has no optimizer state yet
    assert counted["nbytes"] == pytest.approx(size, rel=0.1)
    full = counted["projection"]["tiers"]["full"]
    assert full["rank"] == pytest.approx(size, rel=0.1)
    assert full["world"] == 125 * full["node"] == 1000 * full["rank"]


def test_a_dry_run_of_one_step_ends_after_it(tmp_path: Path, script: Path) -> None:
    done = run(tmp_path, "capture", "-o", "d", "--dry-run", "--json", "--steps", "3", "--", script.name)
    assert json.loads(done.stdout)["step"] == 3


def test_a_dry_run_where_no_model_is_called(tmp_path: Path) -> None:
    (tmp_path / "empty.py").write_text("print('nothing')\n")
    done = run(tmp_path, "capture", "-o", "d", "--dry-run", "--", "empty.py")
    assert done.returncode == 3
    assert "nothing would be recorded" in done.stderr


def test_only_the_last_steps_are_kept(tmp_path: Path, script: Path) -> None:
    done = run(tmp_path, "capture", "-o", "d", "--keep", "2", "--fsync", "step", "--", script.name)
    assert done.returncode == 0, done.stderr
    assert "finished" in done.stdout
    with open_dump(tmp_path / "d") as dump:
        assert dump.steps == [4, 5]


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("--keep", "0"), "at least one step"),
        (("--reserve-free", "lots"), "cannot read the size"),
        (("--compress", "gzip"), "invalid choice"),
        (("--max-wait", "-1"), "cannot be negative"),
    ],
)
def test_limits_that_make_no_sense(tmp_path: Path, script: Path, words: tuple[str, ...], complaint: str) -> None:
    done = run(tmp_path, "capture", "-o", "d", *words, "--", script.name)
    assert done.returncode == 2
    assert complaint in done.stderr
    assert "Traceback" not in done.stderr
    assert "finished" not in done.stdout


def test_comparing_files_of_another_tool(tmp_path: Path) -> None:
    for side, last in (("a", 1.0), ("b", 1.1)):
        (tmp_path / side).mkdir()
        for name, value in (("fc1", 1.0), ("fc2", last)):
            np.save(tmp_path / side / f"step0_net.{name}_out.npy", np.full(5, value))
    rule = "step{step}_{scope}_out"
    done = run(tmp_path, "compare", "a", "b", "--naming", rule, "--json")
    assert done.returncode == 1, done.stderr
    assert json.loads(done.stdout)["first"]["scope"] == "net.fc2"
    assert run(tmp_path, "compare", "a", "a", "--naming", rule).returncode == 0
    done = run(tmp_path, "compare", "a", "b", "--naming", "{nonsense}")
    assert done.returncode == 2
    assert "unknown fields nonsense" in done.stderr
    done = run(tmp_path, "show", "a", "--naming", rule)
    assert done.returncode == 0
    assert "net.fc1" in done.stdout
