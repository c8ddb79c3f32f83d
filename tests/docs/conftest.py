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
# what `regimes` takes, as in docs/regimes.md
BOTH_SIDES = """
import torch

from mymodel import Wrong, make_model


def reference():
    return make_model()


def candidate():
    return make_model(Wrong)


def inputs():
    return torch.ones(4, 8)
"""
CONFIG = '{"hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 4}'


# what the guides take for granted: files, dumps under the names that the pages use, and names in Python
GUIDES = """
import csv
import os
import shutil
from pathlib import Path

import torch
from torch import nn

import precision_align as pa
from mymodel import Wrong, make_batches, make_model


class Block(nn.Module):
    def __init__(self, inner, names):
        super().__init__()
        self.add_module(names[0], inner)
        self._path = names

    def forward(self, x):
        return self.get_submodule(self._path[0])(x)


def nest(leaf, path):
    for name in reversed(path.split(".")):
        leaf = Block(leaf, [name])
    return leaf


class Square(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        context.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(context, gradient):
        return 2 * context.saved_tensors[0] * gradient


def train(model, optimizer, batches, recorder):
    for batch in batches:
        with recorder.step():
            model(batch).backward()
            optimizer.step()
            optimizer.zero_grad()


def record(path, model, batches):
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with pa.capture(model, path, optimizer=optimizer) as recorder:
        train(model, optimizer, batches, recorder)


def copy(source, *targets):
    for target in targets:
        shutil.copytree(source, target)


def write_curve(name, factor):
    with open(name, "w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["step", "loss"])
        rows.writerows([step, 3 / (1 + step / 50) * (factor if step >= 60 else 1)] for step in range(120))


def prepare(run):
    batches = make_batches()
    record("runs/reference", make_model(), batches)
    record("runs/candidate", make_model(Wrong), batches)
    copy("runs/reference", "runs/float", "runs/cpu32", "runs/cpu16", "node0", "node1", "disks/node0")
    copy("runs/candidate", "runs/int8", "runs/npu32", "runs/npu16", "runs/candidate2", "runs/candidate3")
    for path, at in (("runs/hf", "model.layers.0.self_attn.o_proj"), ("runs/port", "encoder.blocks.0.attn.proj")):
        record(path, nest(make_model(), at), batches)
    write_curve("reference.csv", 1)
    write_curve("candidate.csv", 1.2)
    line = " iteration {}/ 40 | elapsed time per iteration (ms): 500.0 | lm loss: {:E} |"
    lines = [line.format(step, 3 - step / 100) for step in range(40)]
    Path("train.log").write_text("\\n".join(lines) + "\\n")
    Path("src").mkdir()
    Path("src/ops.py").write_text("import flash_attn\\nimport torch\\ntorch.cuda.synchronize()\\n")
    Path("pretrain.sh").write_text("python launched.py\\n")
    Path("launched.py").write_text("import precision_align.auto\\n" + Path("train.py").read_text())
    Path("port.py").write_text(Path("train.py").read_text().replace("make_model()", "make_model(Wrong)")
                               .replace("import make_batches", "import Wrong, make_batches"))
    Path("somebodys.py").write_text("def fused_norm(x):\\n    return x\\n")
    for line in ("compare runs/reference runs/candidate -o report.json", "scan src --write-baseline known.json"):
        run(line)
    os.environ["GITHUB_STEP_SUMMARY"] = "summary.md"
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    return {"pa": pa, "torch": torch, "model": model, "optimizer": optimizer, "batches": batches, "train": train,
            "make_model": make_model, "Wrong": Wrong, "Square": Square, "__name__": "page"}
"""


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
    return make_place(tmp_path_factory.mktemp("reader"))


@pytest.fixture(scope="session")
def guides(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """Another such folder, in which the guides are read."""
    return make_place(tmp_path_factory.mktemp("guides"))


def make_place(folder: Path) -> Place:
    """The files that are the reader's own."""
    pytest.importorskip("torch")
    for name, text in (
        ("mymodel", MODEL),
        ("train", TRAIN),
        ("mine", REPLACEMENT),
        ("prepare", PREPARE),
        ("build", BUILD),
        ("both_sides", BOTH_SIDES),
        ("prepare_guides", GUIDES),
    ):
        (folder / f"{name}.py").write_text(text, encoding="utf-8")
    (folder / "config.json").write_text(CONFIG, encoding="utf-8")
    image = np.random.default_rng(0).random((32, 48, 3)).astype(np.float32)
    np.save(folder / "right.npy", image)
    np.save(folder / "wrong.npy", np.roll(image, 1, axis=1))
    return Place(folder)
