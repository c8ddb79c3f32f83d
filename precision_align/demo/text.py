"""Real English text for the demo: the language reference that ships with Python."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor


def load_text() -> bytes:
    """Python's own help topics (about 460 kB); where a distribution strips them, this package's own sources."""
    try:
        topics: dict[str, str] = importlib.import_module("pydoc_data.topics").topics
    except ImportError:
        return read_sources(Path(__file__).parents[1])
    return "\n".join(topics[name] for name in sorted(topics)).encode()


def read_sources(folder: Path) -> bytes:
    """All Python files of a folder, one behind the other, in the order of their paths."""
    return b"\n".join(path.read_bytes() for path in sorted(folder.rglob("*.py")))


def draw_batches(text: bytes, batch: int, length: int, seed: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
    """Endless (tokens, targets) pairs, int64 of shape (batch, length), from random places, the same for one seed."""
    data = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
    generator = torch.Generator().manual_seed(seed)
    offsets = torch.arange(length + 1)
    while True:
        starts = torch.randint(len(data) - length, (batch, 1), generator=generator)
        window = data[starts + offsets]
        yield window[:, :-1], window[:, 1:]
