"""Modules of every kind that must pass although nothing before them is bit-equal, with gradients and updates."""

from __future__ import annotations

import torch
from localization_cases import Pair, case
from torch import nn
from torch.nn.utils import parametrizations


class Noisy(nn.Linear):
    """The same product in another order, so that nothing after it is bit-equal."""

    other = False

    def forward(self, x):
        if not self.other:
            return super().forward(x)
        parts = [a @ b.t() for a, b in zip(x.chunk(4, -1), self.weight.chunk(4, -1))]
        return torch.stack(parts).flip(0).sum(0) + self.bias


def _register_noisy(name: str, make) -> None:
    """A module that must pass although nothing before it is bit-equal, with its gradients and updates."""

    def build(faulty: bool) -> Pair:
        torch.manual_seed(65)
        model = nn.Sequential(Noisy(16, 16), nn.Tanh(), make(), Noisy(16, 4))
        model[0].other = model[3].other = faulty
        model.opt = torch.optim.Adam(model.parameters(), lr=1e-2)
        return model, (torch.randn(12, 16).requires_grad_(),)

    build.__name__ = f"noise_before_{name}"
    case(None, "rounding upstream", phase="step")(build)


def _hooked(before: bool) -> nn.Module:
    layer = nn.Linear(16, 16)
    if before:
        layer.register_forward_pre_hook(lambda module, args: (args[0] * 1.5,))
    else:
        layer.register_forward_hook(lambda module, args, output: output * 1.5)
    return layer


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.act, self.fc = nn.ReLU(inplace=True), nn.Linear(16, 16)

    def forward(self, x):
        y = self.fc(self.act(x * 1))
        y += x
        return y


class Statistics(nn.Module):
    """Keeps a running maximum and a counter, as observers of quantisation do."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("top", torch.zeros(()))
        self.register_buffer("count", torch.zeros((), dtype=torch.long))

    def forward(self, x):
        self.count += 1
        self.top = torch.maximum(self.top, x.detach().abs().max())
        return x / self.top.clamp_min(1e-3)


class Numbers(nn.Module):
    """Plain numbers computed from tensors, passed to a child; a stochastic depth that is off."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = Scale()

    def forward(self, x):
        return self.scale(x, factor=x.detach().abs().mean().item(), count=len(x), name="cpu")


class Scale(nn.Module):
    def forward(self, x, factor, count, name, power=1):
        return x / factor * count**0.5


class Experts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.experts = nn.Linear(16, 3), nn.ModuleList(nn.Linear(16, 16) for _ in range(3))

    def forward(self, x):
        weight, index = self.gate(x).softmax(-1).max(-1)
        y = torch.zeros_like(x)
        for n, expert in enumerate(self.experts):
            rows = (index == n).nonzero()[:, 0]
            y[rows] = expert(x[rows]) * weight[rows, None]
        return y


class Loop(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(4, 16)

    def forward(self, x):
        h = x
        for part in x.chunk(4, -1):
            h = self.cell(part, h)
        return h


class Attends(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attn = nn.MultiheadAttention(16, 2)

    def forward(self, x):
        return self.attn(x, x, x, average_attn_weights=False)[0]


class Pools(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.pool = nn.MaxPool1d(3, 1, 1)

    def forward(self, x):
        return self.pool(x[None])[0]


class Bag(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(20, 16, mode="mean")

    def forward(self, x):
        return x + self.bag(torch.arange(len(x) * 2).view(-1, 2) % 20)


class Frozen(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(16, 16).requires_grad_(False)

    def forward(self, x):
        with torch.no_grad():
            side = self.fc(x)
        return x * side.sigmoid() + self.fc(x)


_NOISY = {
    "user_pre_hook": lambda: _hooked(True),
    "user_hook": lambda: _hooked(False),
    "weight_norm": lambda: torch.nn.utils.weight_norm(nn.Linear(16, 16)),
    "spectral_norm": lambda: torch.nn.utils.spectral_norm(nn.Linear(16, 16)),
    "parametrized_spectral_norm": lambda: parametrizations.spectral_norm(nn.Linear(16, 16)),
    "batch_norm": lambda: nn.BatchNorm1d(16),
    "in_place_residual": Residual,
    "statistics": Statistics,
    "plain_numbers": Numbers,
    "experts": Experts,
    "gru_cell": Loop,
    "attention": Attends,
    "max_pool": Pools,
    "embedding_bag": Bag,
    "frozen": Frozen,
    "group_norm": lambda: nn.GroupNorm(4, 16),
    "prelu": nn.PReLU,
    "hardtanh": nn.Hardtanh,
    "hardswish": nn.Hardswish,
    "bilinear": lambda: nn.Sequential(
        nn.Unflatten(1, (1, 4, 4)), nn.Upsample(scale_factor=0.5), nn.Flatten(), nn.Linear(4, 16)
    ),
    "transformer": lambda: nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0),
    "softmax": lambda: nn.Softmax(-1),
    "conv": lambda: nn.Sequential(nn.Unflatten(1, (4, 4)), nn.Conv1d(4, 4, 3, padding=1), nn.Flatten()),
    "transposed_conv": lambda: nn.Sequential(
        nn.Unflatten(1, (4, 4)), nn.ConvTranspose1d(4, 4, 3, padding=1), nn.Flatten()
    ),
    "instance_norm": lambda: nn.Sequential(nn.Unflatten(1, (4, 4)), nn.InstanceNorm1d(4, affine=True), nn.Flatten()),
}
for _name, _make in _NOISY.items():
    _register_noisy(_name, _make)
