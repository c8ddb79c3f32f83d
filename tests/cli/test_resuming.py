"""A comparison that is interrupted or killed, and goes on where it was."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from precision_align.comparison.journals import Journal

MODEL = """
import time
from pathlib import Path

import torch
from torch import nn


class Slow(nn.Linear):
    def forward(self, x):
        if Path("log").exists():
            with open("log", "a") as file:
                file.write("x")
        if Path("slow").exists():
            time.sleep(0.15)
        return super().forward(x) * 1.5


def build():
    torch.manual_seed(0)
    return nn.Sequential(*[Slow(4, 4) for _ in range(12)])
"""
RECORD = """
import torch, model
import precision_align as pa

for name, factor in (("reference", 1.0), ("candidate", 1.01)):
    net = model.build()
    original = net[0].forward
    net[0].forward = lambda x: original(x) * factor
    x = torch.ones(3, 4, requires_grad=True)
    with pa.capture(net, name, sources=("modules", "parameters", "gradients")) as recorder, recorder.step():
        net(x).sum().backward()
"""


@pytest.fixture
def runs(command: Any, tmp_path: Path) -> Path:
    (command.folder / "model.py").write_text(MODEL, encoding="utf-8")
    done = command.run_python("-c", RECORD, PYTHONPATH=str(command.folder))
    assert done.status == 0, done.err
    return Path(command.folder)


def start(folder: Path, environment: dict[str, str]) -> subprocess.Popen[bytes]:
    words = ["compare", "reference", "candidate", "--replay", "model:build", "-o", "report.json"]
    return subprocess.Popen(
        [sys.executable, "-m", "precision_align", *words],
        cwd=folder,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )


def wait_for_lines(path: Path, count: int, process: subprocess.Popen[bytes]) -> int:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        lines = path.read_bytes().count(b"\n") if path.exists() else 0
        if lines >= count:
            return lines
        time.sleep(0.02)
    raise AssertionError("no journal came")


def test_interrupted_killed_and_gone_on_with_gives_the_same_report(command: Any, runs: Path) -> None:
    environment = command.environment(PYTHONPATH=str(runs))
    (runs / "log").touch()
    process = start(runs, environment)
    process.communicate(timeout=120)
    assert process.returncode == 1
    expected, whole = (runs / "report.json").read_bytes(), (runs / "log").stat().st_size
    assert not (runs / "report.json.partial").exists()
    (runs / "report.json").unlink()

    (runs / "slow").touch()
    process = start(runs, environment)
    lines = wait_for_lines(runs / "report.json.partial", 3, process)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=120)
    assert process.returncode == 130
    assert b"kept in report.json.partial" in error
    assert b"Traceback" not in error

    process = start(runs, environment)
    wait_for_lines(runs / "report.json.partial", lines + 3, process)
    process.kill()
    process.communicate(timeout=120)
    assert not (runs / "report.json").exists()

    (runs / "slow").unlink()
    (runs / "log").write_bytes(b"")
    process = start(runs, environment)
    _, error = process.communicate(timeout=120)
    assert process.returncode == 1
    assert b"going on with" in error
    assert (runs / "report.json").read_bytes() == expected
    assert (runs / "log").stat().st_size < whole  # what was replayed before is not replayed again
    assert not (runs / "report.json.partial").exists()


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def fill(path: Path, identity: str = "a") -> None:
    clock = Clock()
    journal = Journal(path, identity, clock)
    clock.now = 10.0
    for number in range(3):
        clock.now += 10.0
        journal.keep([number, 0.1 + 0.2, float("inf")], "place", number)


def test_values_come_back_bit_for_bit(tmp_path: Path) -> None:
    fill(tmp_path / "j")
    again = Journal(tmp_path / "j", "a")
    assert again.num_known == 3
    assert again.recall("place", 2) == [2, 0.1 + 0.2, float("inf")]
    assert again.recall("place", 3) is None


def test_of_another_comparison_nothing_is_used(tmp_path: Path) -> None:
    fill(tmp_path / "j")
    assert Journal(tmp_path / "j", "b").num_known == 0
    fill(tmp_path / "j", "b")
    assert Journal(tmp_path / "j", "b").num_known == 3
    assert Journal(tmp_path / "j", "a").num_known == 0


def test_a_torn_line_costs_itself_only(tmp_path: Path) -> None:
    fill(tmp_path / "j")
    data = (tmp_path / "j").read_bytes()
    (tmp_path / "j").write_bytes(data[:-5])
    again = Journal(tmp_path / "j", "a", Clock())
    assert again.num_known == 2
    again.keep(["new"], "other")
    again.flush()
    found = Journal(tmp_path / "j", "a")
    assert found.recall("other") == ["new"]
    assert found.recall("place", 1) == [1, 0.1 + 0.2, float("inf")]
    assert found.recall("place", 2) is None


def test_short_work_leaves_no_file(tmp_path: Path) -> None:
    with Journal(tmp_path / "j", "a", Clock()) as journal:
        journal.keep([1], "place")
    assert not (tmp_path / "j").exists()


def test_a_folder_that_cannot_be_written_ends_the_keeping_only(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "no" / "j", "a", Clock())
    journal.keep([1], "place")
    journal.flush()
    assert journal.path is None
    journal.keep([1], "place")
    journal.remove()


def test_identity_sees_what_decides_the_result(tmp_path: Path, runs: Path) -> None:
    from precision_align.workflows.resuming import open_journal

    def identify(**more: Any) -> str:
        journal = open_journal(tmp_path / "r.json", runs / "reference", runs / "candidate", **more)
        return json.dumps(journal._head)

    plain = identify()
    assert identify() == plain
    rules = tmp_path / "rules.toml"
    rules.write_text("", encoding="utf-8")
    assert identify(rules=rules) != plain
    part = next((runs / "candidate").rglob("*.h5"))
    os.utime(part, ns=(1, 1))
    assert identify() != plain
