"""Small recorded trainings for the checks of health: each family clean, and one with any fault put in."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
nn = torch.nn
FAMILIES = ("mlp", "transformer", "convolution", "recurrent", "moe", "lora", "autocast", "scaler")


class Block(nn.Module):
    """One pre-norm transformer block with a causal mask."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.norm, self.attend = nn.LayerNorm(width), nn.MultiheadAttention(width, 2, batch_first=True)
        self.mlp = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 32), nn.GELU(), nn.Linear(32, width))

    def forward(self, x: Any) -> Any:
        normed = self.norm(x)
        mask = torch.triu(torch.full((x.shape[1], x.shape[1]), float("-inf")), 1)
        x = x + self.attend(normed, normed, normed, attn_mask=mask, need_weights=False)[0]
        return x + self.mlp(x)


class Language(nn.Module):
    """Tokens and labels in, the mean loss of the labels that are not ignored out; the head shares the embedding."""

    def __init__(self, tied: bool = True) -> None:
        super().__init__()
        self.embed, self.block, self.head = nn.Embedding(32, 16), Block(), nn.Linear(16, 32, bias=False)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, tokens: Any, labels: Any) -> Any:
        logits = self.head(self.block(self.embed(tokens)))
        return nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


class Experts(nn.Module):
    """Four experts, the best two for each row."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(16, 4, bias=False)
        self.experts = nn.ModuleList(nn.Linear(16, 16) for _ in range(4))

    def forward(self, x: Any) -> Any:
        weights, chosen = self.router(x).softmax(-1).topk(2)
        out = torch.zeros_like(x)
        for index, expert in enumerate(self.experts):
            rows, place = (chosen == index).nonzero(as_tuple=True)
            out = out.index_add(0, rows, expert(x[rows]) * weights[rows, place, None])
        return x + out


class Adapted(nn.Module):
    """A frozen layer with a low-rank update that starts at zero."""

    def __init__(self) -> None:
        super().__init__()
        self.base, self.down, self.up = nn.Linear(16, 16), nn.Linear(16, 4, bias=False), nn.Linear(4, 16, bias=False)
        self.base.requires_grad_(False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Any) -> Any:
        return self.base(x) + self.up(self.down(x))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell, self.out = nn.LSTM(16, 16, batch_first=True), nn.Linear(16, 8)

    def forward(self, x: Any) -> Any:
        return self.out(self.cell(x)[0][:, -1])


def build(family: str) -> Any:
    torch.manual_seed(0)
    if family in ("transformer", "autocast", "scaler"):
        return Language()
    if family == "convolution":
        return nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(8, 8),
        )
    if family == "recurrent":
        return Recurrent()
    if family == "moe":
        return nn.Sequential(nn.Linear(16, 16), Experts(), nn.Linear(16, 8))
    if family == "lora":
        return nn.Sequential(Adapted(), nn.ReLU(), nn.Linear(16, 8))
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 8))


def draw(family: str, step: int) -> tuple[Any, ...]:
    generator = torch.Generator().manual_seed(step)
    if family in ("transformer", "autocast", "scaler"):
        tokens = torch.randint(0, 32, (4, 9), generator=generator)
        return tokens[:, :-1], tokens[:, 1:].clone()
    shape = {"convolution": (4, 3, 8, 8), "recurrent": (4, 6, 16)}.get(family, (32, 16))
    return (torch.randn(shape, generator=generator),)


class Training:
    """One short training; a test's fault may replace any of its parts."""

    def __init__(self, family: str, path: Path) -> None:
        self.family, self.path = family, path
        self.model = build(family)
        trainable = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        self.optimizer: Any = torch.optim.AdamW(trainable, 1e-3)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8) if family == "scaler" else None
        self.draw: Callable[[int], Any] = lambda step: draw(family, step)
        self.before_update: Callable[[int], None] = lambda step: None
        self.after_update: Callable[[int], None] = lambda step: None
        self.loss: Callable[[Any], Any] = lambda out: out if out.ndim == 0 else out.square().mean()
        self.log: Callable[[Any, float], None] = lambda recorder, norm: recorder.log(grad_norm=norm)
        self.clip = 1.0
        self.steps = 3
        self.rank = 0

    def run(self) -> Path:
        from precision_align.recording.session import capture

        with capture(self.model, self.path, optimizer=self.optimizer, facts=True) as recorder:
            for step in range(self.steps):
                with recorder.step():
                    self._step(recorder, step)
        return self.path

    def _step(self, recorder: Any, step: int) -> None:
        cast = torch.autocast("cpu", torch.bfloat16) if self.family == "autocast" else contextlib.nullcontext()
        with cast:
            batch = self.draw(step)
            loss = self.loss(self.model(**batch) if isinstance(batch, dict) else self.model(*batch))
        self.optimizer.zero_grad()
        if self.scaler is None:
            loss.backward()
        else:
            self.scaler.scale(loss).backward()
            self.scaler.unscale_(self.optimizer)
        self.before_update(step)
        parameters = [parameter for parameter in self.model.parameters() if parameter.grad is not None]
        norm = nn.utils.clip_grad_norm_(parameters, self.clip)
        self.log(recorder, float(norm))
        if self.scaler is None:
            self.optimizer.step()
        else:
            self.scaler.step(self.optimizer)
            self.scaler.update()
        self.after_update(step)


@pytest.fixture
def training(tmp_path: Path) -> Callable[[str], Training]:
    counts: list[int] = []

    def make(family: str = "mlp") -> Training:
        counts.append(0)
        return Training(family, tmp_path / f"run{len(counts)}")

    return make
