"""A place in which everything that the documentation shows can be run."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from programs import run_python

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


# what `reduce` takes: a model whose activation is wrong on one side, in a size that can be cut
BUILD = """
import torch
from torch import nn

from mymodel import Wrong


def make(config, activation):
    torch.manual_seed(0)
    width = config["hidden_size"]
    layers = [nn.Sequential(nn.Linear(width, width), activation()) for _ in range(config["num_hidden_layers"])]
    return nn.Sequential(*layers)


def build(config):
    return make(config, nn.GELU), make(config, Wrong), (torch.ones(4, config["hidden_size"]),)
"""
CONFIG = '{"hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 4}'


@dataclass(frozen=True)
class Place:
    """A folder, and commands run in it."""

    folder: Path

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """The outcome of a Python program, or of ``precision-align``, which is this checkout's."""
        kept = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR") if name in os.environ}
        environment = {**kept, "LANG": "C.UTF-8", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
        if words[0] == "precision-align":
            words = ("-m", "precision_align", *words[1:])
        return run_python(*words, cwd=self.folder, env=environment)


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """The reader's folder before anything was recorded."""
    pytest.importorskip("torch")
    folder = tmp_path_factory.mktemp("reader")
    for name, text in (
        ("mymodel", MODEL),
        ("train", TRAIN),
        ("mine", REPLACEMENT),
        ("prepare", PREPARE),
        ("build", BUILD),
    ):
        (folder / f"{name}.py").write_text(text, encoding="utf-8")
    (folder / "config.json").write_text(CONFIG, encoding="utf-8")
    image = np.random.default_rng(0).random((32, 48, 3)).astype(np.float32)
    np.save(folder / "right.npy", image)
    np.save(folder / "wrong.npy", np.roll(image, 1, axis=1))
    return Place(folder)
