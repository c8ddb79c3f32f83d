"""Small models of several families and a fault in each, for the tests of ``reduce``: made from a configuration."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

Config = dict[str, int]
Pair = tuple[nn.Module, nn.Module, torch.Tensor]


class Convolution(nn.Module):
    def __init__(self, c: Config) -> None:
        super().__init__()
        width = c["width"]
        self.stem, self.out = nn.Conv2d(3, width, 3, padding=1), nn.Linear(width, 4)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width), nn.SiLU())
            for _ in range(c["depth"])
        )

    def forward(self, x: Any) -> Any:
        x = self.stem(x)
        for block in self.blocks:
            x = x + block(x)
        return self.out(x.mean((2, 3)))


class Recurrent(nn.Module):
    def __init__(self, c: Config) -> None:
        super().__init__()
        width = c["hidden_size"]
        self.embed, self.out = nn.Embedding(c["vocab_size"], width), nn.Linear(width, c["vocab_size"])
        self.cell = nn.LSTM(width, width, c["num_layers"], batch_first=True)

    def forward(self, tokens: Any) -> Any:
        return self.out(self.cell(self.embed(tokens))[0])


class Experts(nn.Module):
    def __init__(self, c: Config) -> None:
        super().__init__()
        width, inner = c["hidden_size"], c["inner"]
        self.chosen, self.normalised = c["top_k"], True
        self.router = nn.Linear(width, c["num_experts"], bias=False)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, inner), nn.SiLU(), nn.Linear(inner, width)) for _ in range(c["num_experts"])
        )

    def forward(self, x: Any) -> Any:
        weights, chosen = self.router(x).softmax(-1).topk(self.chosen)
        if self.normalised:
            weights = weights / weights.sum(-1, keepdim=True)
        out = torch.zeros_like(x)
        for index, expert in enumerate(self.experts):
            rows, place = (chosen == index).nonzero(as_tuple=True)
            out = out.index_add(0, rows, expert(x[rows]) * weights[rows, place, None])
        return x + out


class Vision(nn.Module):
    def __init__(self, c: Config) -> None:
        super().__init__()
        width, patch = c["embed_dim"], c["patch_size"]
        self.patch, self.head = nn.Conv2d(3, width, patch, patch), nn.Linear(width, 10)
        self.place = nn.Parameter(torch.randn(1, (c["image_size"] // patch) ** 2, width))
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, c["num_heads"], 2 * width, 0.0, batch_first=True, norm_first=True)
            for _ in range(c["depth"])
        )

    def forward(self, x: Any) -> Any:
        x = self.patch(x).flatten(2).transpose(1, 2) + self.place
        for layer in self.layers:
            x = layer(x)
        return self.head(x.mean(1))


def _twins(make: Any) -> tuple[Any, Any]:
    models = []
    for _ in range(2):
        torch.manual_seed(0)
        models.append(make())
    return models[0], models[1]


def _draw(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


def convolution(c: Config) -> Pair:
    """A batch normalisation with another epsilon."""
    reference, candidate = _twins(lambda: Convolution(c).eval())
    candidate.blocks[-1][1].eps = 0.1
    return reference, candidate, _draw(c["batch_size"], 3, c["image_size"], c["image_size"])


def recurrent(c: Config) -> Pair:
    """A gate's bias that was loaded wrong."""
    reference, candidate = _twins(lambda: Recurrent(c).eval())
    with torch.no_grad():
        candidate.cell.bias_hh_l0[-1] += 0.5
    shape, generator = (c["batch_size"], c["seq_len"]), torch.Generator().manual_seed(1)
    return reference, candidate, torch.randint(0, c["vocab_size"], shape, generator=generator)


def experts(c: Config) -> Pair:
    """Expert weights that are not normalised."""
    reference, candidate = _twins(lambda: Stack(c).eval())
    candidate.layers[-1].normalised = False
    return reference, candidate, _draw(c["batch_size"], c["hidden_size"])


class Stack(nn.Module):
    def __init__(self, c: Config) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Experts(c) for _ in range(c["num_layers"]))

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            x = layer(x)
        return x


def vision(c: Config) -> Pair:
    """A layer normalisation with another epsilon."""
    reference, candidate = _twins(lambda: Vision(c))
    candidate.layers[-1].norm2.eps = 0.1
    return reference, candidate, _draw(c["batch_size"], 3, c["image_size"], c["image_size"])
