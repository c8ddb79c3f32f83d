"""Runs that end badly: killed at a random moment, on a full disk."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from programs import run_python

from precision_align.core.errors import DumpError
from precision_align.storage.opening import open_dump

pytestmark = [pytest.mark.live, pytest.mark.slow]
ROOT = Path(__file__).resolve().parents[2]

# One process forks a run at a time: torch is imported once.
RUNS = """
import os, sys, time
import torch
from torch import nn
from precision_align.recording.session import capture

torch.set_num_threads(1)
for number in range(int(sys.argv[2])):
    child = os.fork()
    if child:
        print(child, flush=True)
        os.waitpid(child, 0)
        continue
    torch.manual_seed(number)
    model = nn.Sequential(nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 8))
    optimizer = torch.optim.Adam(model.parameters())
    with capture(model, f"{sys.argv[1]}/dump{number}", optimizer=optimizer, sources=SOURCES) as recorder:
        for step in range(100000):
            with recorder.step():
                model(torch.randn(4, 128)).sum().backward()
                optimizer.step()
            os.write(progress := os.open(f"{sys.argv[1]}/progress{number}", os.O_WRONLY | os.O_CREAT), b"%08d" % step)
            os.close(progress)
"""


def test_killed_at_any_moment_every_step_before_the_last_is_there(tmp_path):
    times = 4
    sources = "('modules', 'gradients', 'parameters', 'optimizer', 'operators')"
    process = subprocess.Popen(
        [sys.executable, "-c", RUNS.replace("SOURCES", sources), str(tmp_path), str(times)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
    )
    generator = random.Random(5)
    for number in range(times):
        child = int(process.stdout.readline())
        progress = tmp_path / f"progress{number}"
        while not progress.exists() or not progress.read_bytes():
            time.sleep(0.01)
        time.sleep(generator.random() * 0.3)
        os.kill(child, signal.SIGKILL)
    assert process.wait() == 0
    process.stdout.close()
    for number in range(times):
        last = int((tmp_path / f"progress{number}").read_bytes())
        try:
            dump = open_dump(tmp_path / f"dump{number}")
        except DumpError:
            assert last < 1
            continue
        with dump:
            finished = set(range(last))  # the last one may still have been on its way to the disk
            assert finished <= set(dump.steps)
            assert {point.step for point in dump.series} >= finished
            for record in dump.records:
                assert dump.payload(record.key).shape == record.shape  # the hash is verified


FULL = """
import resource, signal, sys
import torch
from torch import nn
from precision_align.recording.session import capture

def train(path):
    torch.manual_seed(0)
    model = nn.Linear(512, 512)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def steps():
        for _ in range(6):
            model(torch.ones(2, 512)).sum().backward()
            optimizer.step()

    if path is None:
        steps()
    else:
        with capture(model, path, optimizer=optimizer):
            steps()
    return model.weight

plain = train(None)
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (3 << 20, 3 << 20))  # a write beyond it fails, as on a full disk
assert torch.equal(train(sys.argv[1]), plain)
"""


def test_where_nothing_more_can_be_written_training_goes_on(tmp_path):
    done = run_python("-c", FULL, tmp_path / "dump")
    assert done.returncode == 0, done.stderr
    with open_dump(tmp_path / "dump") as dump:
        assert dump.notes
        assert len(dump.series) == 6
