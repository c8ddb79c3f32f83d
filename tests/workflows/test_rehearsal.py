"""Two machines, rehearsed: everything that an engineer does from the reference's cluster to the cure on the NPU's.

Reference and candidate are processes in folders and environments of their own, started by a shell script through
torchrun with two ranks; what crosses is carried as volumes. The candidate runs on the simulated NPU, with one fault.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from programs import ROOT

from precision_align.cli.app import main
from precision_align.reporting.report import Report

pytestmark = pytest.mark.live

LAUNCH = """#!/bin/bash
# every launch of this cluster: bash launch.sh COMMAND
exec {python} -m torch.distributed.run --nproc-per-node 2 --master-port {port} --no-python "$@"
"""

TRAIN = """
import os

import torch
import torch.distributed as dist
from torch import nn

if os.environ["MACHINE"] == "npu":
    from precision_align.devices.simulated import install_simulated

    install_simulated("none", os.environ["FAULT"].split())
device = torch.device(os.environ["MACHINE"])


class Mix(nn.Module):
    def forward(self, x):
        scores = x @ x.transpose(-1, -2) / 3
        return torch.softmax(scores, -1) @ x + x


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.norm, self.mix = nn.Linear(6, 8), nn.LayerNorm(8), Mix()
        self.drop, self.down = nn.Dropout(0.3), nn.Linear(8, 3)

    def forward(self, x):
        return self.down(self.drop(self.mix(self.norm(self.up(x)))))


dist.init_process_group("gloo")
torch.manual_seed(int(os.environ["SEED"]) + dist.get_rank())  # other numbers on each machine
model = Net().to(device)
optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
for _ in range(1):
    x, y = torch.randn(4, 5, 6).to(device), torch.randint(0, 3, (20,)).to(device)
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x).flatten(0, 1), y).backward()
    for parameter in model.parameters():
        gradient = parameter.grad.cpu()
        dist.all_reduce(gradient)
        parameter.grad.copy_(gradient / 2)
    optimizer.step()
dist.destroy_process_group()
"""


class Machine:
    """A folder, an environment, and the way programs are launched there."""

    def __init__(self, folder: Path, **environment: str) -> None:
        self.folder = folder
        folder.mkdir()
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        (folder / "launch.sh").write_text(LAUNCH.format(python=sys.executable, port=port))
        (folder / "train.py").write_text(TRAIN)
        kept = {name: os.environ[name] for name in ("PATH", "TMPDIR") if name in os.environ}
        common = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
        self.environment = {**kept, **common, "HOME": str(folder), **environment}

    def capture(self, *options: str) -> None:
        words = [sys.executable, "-m", "precision_align", "capture", *options, "--", "train.py"]
        done = subprocess.run(
            ["bash", "launch.sh", *words], cwd=self.folder, env=self.environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr

    def enter(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(self.folder)
        for name, value in self.environment.items():
            monkeypatch.setenv(name, value)


def test_from_the_reference_to_the_cure(tmp_path, monkeypatch, capsys):
    from precision_align.devices.simulated import is_supported

    if not is_supported():
        pytest.skip("the simulated device needs torch >= 2.11")
    sources = ("--steps", "0", "--sources", "modules,gradients,parameters,optimizer,operators")

    reference = Machine(tmp_path / "cuda", MACHINE="cpu", SEED="1")
    reference.capture("-o", "reference", "--save-start", "start", *sources)
    reference.enter(monkeypatch)
    assert main(["pack", "reference", "start", "-o", "volumes", "--volume", "64KB"]) == 0
    assert len([*Path("volumes").iterdir()]) > 2

    candidate = Machine(tmp_path / "npu", MACHINE="npu", SEED="500", FAULT="scale@*:softmax:value=1.02:call=*")
    shutil.move(tmp_path / "cuda" / "volumes", tmp_path / "npu" / "volumes")
    shutil.rmtree(tmp_path / "cuda")  # no shared folder
    candidate.enter(monkeypatch)
    assert main(["unpack", "volumes", "-o", "arrived"]) == 0
    began = ("--start-from", "arrived/start", *sources)
    candidate.capture("-o", "free", *began)
    candidate.capture("-o", "forced", "--force", "arrived/reference", *began)

    for run in ("free", "forced"):
        assert main(["compare", "arrived/reference", run, "-o", f"{run}.json"]) == 1
        first = Report.load(f"{run}.json").first
        assert (first.scope, first.phase) == ("mix", "forward")
        assert "differs on equal inputs is aten._softmax.default at train.py" in first.evidence

    capsys.readouterr()
    status = main(
        [
            "bisect", "-o", "search", "--report", "free.json", "--reference", "arrived/reference", "--confirm", "0",
            "--launcher", "bash launch.sh", "--capture", " ".join(began), "--", "train.py",
        ]
    )  # fmt: skip
    said = capsys.readouterr()
    assert status == 0, said.err
    assert "mix=cpu: cured" in said.out
    assert 'get_submodule("mix")' in Path("search/cure.py").read_text().replace("'", '"')
