"""The small model of the conformance suite, and its training: every kind of layer that devices treat apart."""

from __future__ import annotations

from typing import Any, Optional

import torch
from torch import nn
from torch.nn import functional

WIDTH, CLASSES, BATCH = 16, 4, 8


class Block(nn.Module):
    """A residual branch: norm, two linear layers and what stands between them."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.act, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(approximate="tanh"), nn.Linear(32, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[B, 16] to [B, 16]."""
        branch: torch.Tensor = self.down(self.act(self.up(self.norm(x))))
        return x + branch


class Small(nn.Module):
    """Convolution, two blocks, a head; inline operators in the root's own forward."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 4, 3, padding=1)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[B, 16] to [B, 4]."""
        pictures = torch.relu(self.first(x.view(-1, 1, 4, 4)))
        hidden = pictures.mean(1).flatten(1)
        for block in self.blocks:
            hidden = block(hidden)
        logits: torch.Tensor = self.head(hidden)
        return logits


def build(kind: str) -> Small:
    """The model on a device type, with the same values everywhere."""
    torch.manual_seed(0)
    return Small().to(kind)


def make_batches(kind: str, count: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Inputs [B, 16] and labels [B] for some steps, drawn on the CPU."""
    generator = torch.Generator().manual_seed(1)
    drawn = [
        (torch.randn(BATCH, WIDTH, generator=generator), torch.randint(0, CLASSES, (BATCH,), generator=generator))
        for _ in range(count)
    ]
    return [(inputs.to(kind), labels.to(kind)) for inputs, labels in drawn]


def make_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    """AdamW, whose state shows a lost gradient for long."""
    return torch.optim.AdamW(model.parameters(), lr=1e-2)


def train_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, batch: Any, autocast: Optional[torch.dtype] = None
) -> torch.Tensor:
    """One step; returns the loss."""
    inputs, labels = batch
    optimizer.zero_grad()
    with torch.autocast(inputs.device.type, dtype=autocast or torch.bfloat16, enabled=autocast is not None):
        loss = functional.cross_entropy(model(inputs).float(), labels)
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    return loss.detach()


def backward_step(model: nn.Module, batch: Any) -> None:
    """Forward and backward, no update."""
    inputs, labels = batch
    functional.cross_entropy(model(inputs), labels).backward()  # type: ignore[no-untyped-call]
