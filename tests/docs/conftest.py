"""A place in which everything that the documentation shows can be run."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# mymodel.py, train.py and mine.py are the reader's own files, as the README names them
MODEL = """
import os

import torch
from torch import nn


class Wrong(nn.GELU):
    def forward(self, x):
        return super().forward(x) * 1.02


class Net(nn.Module):
    def __init__(self, activation):
        super().__init__()
        self.body = nn.Linear(8, 16)
        self.act = activation
        self.head = nn.Linear(16, 4)

    def forward(self, x):
        return self.head(self.act(self.body(x))).square().mean()


def make_model(activation=nn.GELU):
    torch.manual_seed(0)
    return Net(activation())


def make_batches():
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(32, 8, generator=generator) for _ in range(3)]
"""

TRAIN = """
import torch

from mymodel import make_batches, make_model

model = make_model()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for batch in make_batches():
    loss = model(batch)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""

# what the README's first block has around it: the candidate's activation is 2 % too large
PREPARE = """
import sys

import torch

from mymodel import Wrong, make_batches, make_model

model = make_model(*([Wrong] if sys.argv[1] == "candidate" else []))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
batches = make_batches()
"""

REPLACEMENT = """
import torch


def rms_norm(x, weight=None, eps=1e-6, offset=0.0):
    wide = x.float()
    y = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (y if weight is None else y * (offset + weight.float())).to(x.dtype)
"""


@dataclass(frozen=True)
class Place:
    """A folder, and commands run in it."""

    folder: Path

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """A program's outcome; ``precision-align`` is this checkout's."""
        program = [sys.executable, "-m", "precision_align"] if words[0] == "precision-align" else [words[0]]
        kept = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR") if name in os.environ}
        return subprocess.run(
            [*program, *words[1:]],
            cwd=self.folder,
            env={**kept, "LANG": "C.UTF-8", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """The reader's folder before anything was recorded."""
    pytest.importorskip("torch")
    folder = tmp_path_factory.mktemp("reader")
    for name, text in (("mymodel", MODEL), ("train", TRAIN), ("mine", REPLACEMENT), ("prepare", PREPARE)):
        (folder / f"{name}.py").write_text(text, encoding="utf-8")
    return Place(folder)
