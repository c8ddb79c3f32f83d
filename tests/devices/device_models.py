"""Models of the device tests: one for each part of torch that treats devices apart."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

WIDTH = 16
CLASSES = 4


class Mlp(nn.Sequential):
    """Linear, GELU, LayerNorm, dropout."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(WIDTH, 64), nn.GELU(), nn.LayerNorm(64), nn.Dropout(0.1), nn.Linear(64, CLASSES))


class ConvNet(nn.Module):
    """Convolution, BatchNorm, pooling, transposed convolution, GroupNorm."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.up = nn.ConvTranspose2d(8, 4, 2, stride=2)
        self.groups = nn.GroupNorm(2, 4)
        self.head = nn.Linear(64, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = F.relu(self.norm(self.first(x.view(-1, 1, 4, 4))))
        hidden = self.groups(self.up(F.max_pool2d(hidden, 2)))
        return self.head(hidden.flatten(1))


class Recurrent(nn.Module):
    """Two layers of LSTM, GRU or RNN."""

    def __init__(self, layer: Callable[..., nn.Module]) -> None:
        super().__init__()
        self.layer = layer(WIDTH, WIDTH, 2, batch_first=True)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layer(sequence(x))[0][:, -1])


class Cells(nn.Module):
    """LSTMCell and GRUCell, step by step."""

    def __init__(self) -> None:
        super().__init__()
        self.long = nn.LSTMCell(WIDTH, WIDTH)
        self.gated = nn.GRUCell(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state, hidden = None, None
        for step in sequence(x).unbind(1):
            state = self.long(step, state)
            hidden = self.gated(state[0], hidden)
        return self.head(hidden)


class Attention(nn.Module):
    """An encoder layer with dropout under checkpointing, and causal attention."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(WIDTH, 4, 32, dropout=0.1, batch_first=True)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = checkpoint(self.layer, sequence(x), use_reentrant=False)
        heads = hidden.view(-1, 4, 2, 8).transpose(1, 2)
        mixed = F.scaled_dot_product_attention(heads, heads, heads, is_causal=True)
        return self.head(mixed.transpose(1, 2).flatten(2).mean(1))


class TiedWords(nn.Module):
    """Embedding tied to the head (one parameter used twice, the autocast cache's case), RMSNorm, embedding bag."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(32, WIDTH)
        self.bag = nn.EmbeddingBag(32, WIDTH, mode="sum")
        self.norm = nn.RMSNorm(WIDTH)
        self.mix = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = (x.abs() * 10).long() % 32
        hidden = self.norm(self.mix(self.mix(self.words(tokens).mean(1))) + self.bag(tokens))
        return F.linear(hidden, self.words.weight)[:, :CLASSES]


MODELS: dict[str, Callable[[], nn.Module]] = {
    "mlp": Mlp,
    "conv": ConvNet,
    "lstm": lambda: Recurrent(nn.LSTM),
    "gru": lambda: Recurrent(nn.GRU),
    "rnn": lambda: Recurrent(nn.RNN),
    "cells": Cells,
    "attention": Attention,
    "tied": TiedWords,
}


def sequence(x: torch.Tensor) -> torch.Tensor:
    """[B, 16] as [B, 4, 16]."""
    return x.view(-1, 4, 4).repeat(1, 1, 4)


def train(device: str, make: Callable[[], nn.Module], *, low: bool = False, steps: int = 20) -> tuple[list[float], Any]:
    """Train with AdamW and clipped gradients; losses, and parameters and buffers on the CPU."""
    torch.manual_seed(0)
    model = make().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(steps):
        inputs, labels = torch.randn(8, WIDTH).to(device), torch.randint(0, CLASSES, (8,)).to(device)
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.bfloat16, enabled=low):
            loss = F.cross_entropy(model(inputs), labels)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    return losses, {name: tensor.cpu() for name, tensor in model.state_dict().items()}


class Block(nn.Module):
    """A pre-norm transformer block with its attention written inline."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.act, self.down = nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        shape = (batch, length, 3, self.heads, width // self.heads)
        query, key, value = self.qkv(self.norm1(x)).view(shape).permute(2, 0, 3, 1, 4).unbind(0)
        scores = query @ key.transpose(-1, -2) * (width // self.heads) ** -0.5
        future = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
        weights = scores.masked_fill(future, float("-inf")).softmax(-1)
        x = x + self.out((weights @ value).transpose(1, 2).reshape(batch, length, width))
        return x + self.down(self.act(self.up(self.norm2(x))))


class TinyLm(nn.Module):
    """Embeddings, two blocks, a norm, a head: enough for every arithmetic switch to have its first place."""

    def __init__(self, words: int = 50, width: int = 64, heads: int = 4, layers: int = 2, length: int = 16) -> None:
        super().__init__()
        self.emb, self.pos = nn.Embedding(words, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.emb(tokens) + self.pos(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            hidden = block(hidden)
        return self.head(self.norm(hidden))


def make_lm(device: str) -> tuple[TinyLm, torch.Tensor]:
    """The model and a batch [2, 17] of tokens, equal on every device."""
    torch.manual_seed(0)
    model, tokens = TinyLm(), torch.randint(0, 50, (2, 17))
    return model.to(device), tokens.to(device)


def lm_loss(model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    """Next-token cross entropy."""
    return F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())


class Trace:
    """Outputs of every module of one training step, in the order of their ends, and all gradients."""

    def __init__(self, model: nn.Module) -> None:
        self.outputs: dict[str, torch.Tensor] = {}
        self.gradients: dict[str, torch.Tensor] = {}
        self._model = model
        self._handles = [
            module.register_forward_hook(self._keep(name)) for name, module in model.named_modules() if name
        ]

    def _keep(self, name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any, output: Any) -> None:
            self.outputs.setdefault(name, output.detach().cpu().clone())

        return hook

    def finish(self) -> Trace:
        """Collect the gradients and remove the hooks."""
        self.gradients = {name: one.grad.cpu() for name, one in self._model.named_parameters() if one.grad is not None}
        for handle in self._handles:
            handle.remove()
        return self


def run_lm(device: str) -> Trace:
    """One forward and backward pass of the language model."""
    model, tokens = make_lm(device)
    trace = Trace(model)
    lm_loss(model, tokens).backward()
    return trace.finish()


def differing(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> list[str]:
    """Names of tensors that differ in any bit (NaN equals NaN), in order."""
    return [name for name in left if not torch.equal(left[name].nan_to_num(7), right[name].nan_to_num(7))]
