"""The model that both tools record; ``store_model.py small|mid STEPS TASK FOLDER`` records it with msprobe.

Prints the clocks of each pair of an unrecorded and a recorded step as JSON.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn

SIZES = {"small": (128, 4, 64, 6), "mid": (512, 8, 128, 6)}  # width, heads, sequence, layers


class Block(nn.Module):
    """Pre-norm transformer block."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.fc1, self.act, self.fc2 = nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = self.qkv(self.ln1(x)).chunk(3, -1)
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(mixed.transpose(1, 2).flatten(2))
        return x + self.fc2(self.act(self.fc1(self.ln2(x))))


class Model(nn.Module):
    """A byte-level language model."""

    def __init__(self, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(256, width), nn.Linear(width, 256)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def make(size: str) -> tuple[Model, torch.Tensor]:
    """The model and one batch."""
    torch.manual_seed(0)
    width, heads, sequence, layers = SIZES[size]
    return Model(width, heads, layers), torch.randint(0, 256, (4, sequence + 1))


def loss_of(model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    """Next-token loss."""
    return nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())


class Clocks(NamedTuple):
    """Seconds: CPU of the calling thread, CPU of the process, wall."""

    main: float
    process: float
    wall: float


def read_clocks() -> Clocks:
    """Now."""
    return Clocks(time.thread_time(), time.process_time(), time.perf_counter())


def main() -> None:
    """Train in turns without and with msprobe."""
    from msprobe.pytorch import PrecisionDebugger

    size, steps, task, folder = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]
    torch.set_num_threads(1)
    settings = {"scope": [], "list": [], "data_mode": ["all"], "summary_mode": "statistics"}
    config = {"task": task, "dump_path": folder, "rank": [], "step": [], "level": "L0", task: settings}
    path = Path(tempfile.mkdtemp()) / "config.json"
    path.write_text(json.dumps(config))
    debugger = PrecisionDebugger(config_path=str(path))
    models = [make(size), make(size)]
    pairs = []
    for _ in range(steps):
        pair = []
        for recorded, (model, tokens) in enumerate(models):
            started = read_clocks()
            if recorded:
                debugger.start(model=model)
            loss_of(model, tokens).backward()
            if recorded:
                debugger.stop()
                debugger.step()
            pair.append([end - start for end, start in zip(read_clocks(), started)])
            model.zero_grad()
        pairs.append(pair)
    print(json.dumps(pairs))


if __name__ == "__main__":
    main()
