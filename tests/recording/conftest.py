"""Small models of the kinds that go wrong under hooks, and a runner that trains them with or without a session."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any, Callable

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from precision_align.core.records import RunInfo
from precision_align.recording import native
from precision_align.recording.session import capture
from precision_align.storage.memory import MemorySink


class InplaceMlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.act, self.fc2 = nn.Linear(6, 12), nn.ReLU(inplace=True), nn.Linear(12, 6)

    def forward(self, x):
        y = self.fc2(self.act(self.fc1(x)))
        y += x
        return y


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x):
        h = self.norm(x)
        return x + self.down(torch.nn.functional.gelu(self.up(h))) * torch.sigmoid(h) + h


class OuterSkips(nn.Module):
    """Every block's output is used three times: by the next block twice and by a skip outside."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(6) for _ in range(3))
        self.out = nn.Bilinear(6, 6, 4)

    def forward(self, x):
        skips = []
        for block in self.blocks:
            x = block(x)
            skips.append(x)
        total = x
        for skip in reversed(skips):
            total = total + torch.tanh(skip) * 0.3
        return self.out(total, total) + x.sum(-1, keepdim=True)


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down1 = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(inplace=True))
        self.down2 = nn.Sequential(nn.Conv2d(4, 8, 3, stride=2, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True))
        self.up = nn.ConvTranspose2d(8, 4, 2, stride=2)
        self.out = nn.Conv2d(8, 1, 1)

    def forward(self, x):
        first = self.down1(x)
        return self.out(torch.cat([self.up(self.down2(first)), first], 1))


class Attention(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.qkv, self.proj, self.drop = nn.Linear(width, 3 * width), nn.Linear(width, width), nn.Dropout(0.2)

    def forward(self, x, *, mask=None):
        q, k, v = self.qkv(x).chunk(3, -1)
        scores = (q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5).masked_fill(mask, float("-inf"))
        return self.drop(self.proj(scores.softmax(-1) @ v))


class GptBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.n1, self.attn, self.n2, self.mlp = nn.LayerNorm(width), Attention(width), nn.LayerNorm(width), Block(width)

    def forward(self, x, mask):
        x = x + self.attn(self.n1(x), mask=mask)
        return x + self.mlp(self.n2(x))


class Gpt(nn.Module):
    """Tied embeddings; ``recompute``: None, "reentrant" or "not reentrant"."""

    def __init__(self, recompute: str | None) -> None:
        super().__init__()
        self.recompute = recompute
        self.emb, self.blocks = nn.Embedding(11, 8), nn.ModuleList(GptBlock(8) for _ in range(2))
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.emb.weight

    def forward(self, ids):
        mask = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool).triu(1)
        x = self.emb(ids)
        for block in self.blocks:
            if self.recompute:
                x = checkpoint(block, x, mask, use_reentrant=self.recompute == "reentrant")
            else:
                x = block(x, mask)
        return self.head(x)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.out = nn.LSTM(5, 7, num_layers=2, dropout=0.1), nn.Linear(7, 5)

    def forward(self, x):
        y, (h, c) = self.rnn(x)
        return {"y": self.out(y), "state": (h, c, None)}


class Experts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.experts = nn.Linear(6, 4), nn.ModuleList(nn.Linear(6, 6) for _ in range(4))

    def forward(self, x):
        weight, chosen = self.gate(x).softmax(-1).topk(2, -1)
        y = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            rows, slots = (chosen == number).nonzero(as_tuple=True)
            if len(rows):
                y = y.index_add(0, rows, expert(x[rows]) * weight[rows, slots, None])
        return y


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, power):
        ctx.save_for_backward(x)
        return x**power, x.sign()

    @staticmethod
    def backward(ctx, grad, unused):
        (x,) = ctx.saved_tensors
        return grad * 3 * x**2, None


class Custom(nn.Module):
    """A custom Function, a module called twice, a part without gradients and a detached one."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 6)
        self.frozen = nn.Linear(6, 6)

    def forward(self, x):
        h = self.fc(self.fc(x))
        with torch.no_grad():
            shift = self.frozen(h)
        cube, sign = Cube.apply(h, 3)
        return cube + shift + h.detach() * sign


@dataclass
class Kind:
    build: Callable[[], nn.Module]
    batch: Callable[[], tuple[Any, ...]]
    optimizer: Callable[..., Any] = torch.optim.AdamW


KINDS = {
    "in-place mlp": Kind(InplaceMlp, lambda: (torch.randn(4, 6),), lambda p: torch.optim.SGD(p, 0.1, momentum=0.9)),
    "outer skips": Kind(OuterSkips, lambda: (torch.randn(4, 6),)),
    "u-net": Kind(lambda: UNet().to(memory_format=torch.channels_last), lambda: (torch.randn(2, 1, 8, 8),)),
    "gpt": Kind(lambda: Gpt(None), lambda: (torch.randint(0, 11, (2, 5)),)),
    "gpt reentrant": Kind(lambda: Gpt("reentrant"), lambda: (torch.randint(0, 11, (2, 5)),)),
    "gpt not reentrant": Kind(lambda: Gpt("not reentrant"), lambda: (torch.randint(0, 11, (2, 5)),)),
    "lstm": Kind(Recurrent, lambda: (torch.randn(3, 2, 5),)),
    "experts": Kind(Experts, lambda: (torch.randn(9, 6),)),
    "custom": Kind(Custom, lambda: (torch.randn(3, 6).requires_grad_(),)),
    "bfloat16": Kind(lambda: InplaceMlp().bfloat16(), lambda: (torch.randn(4, 6).bfloat16(),)),
}


def leaves(value):
    if isinstance(value, torch.Tensor):
        return [value]
    items = value.values() if isinstance(value, dict) else value if isinstance(value, (tuple, list)) else []
    return [leaf for item in items for leaf in leaves(item)]


def loss_of(output):
    return sum((leaf.float() ** 2).mean() for leaf in leaves(output) if leaf.requires_grad)


def bits(tensor):
    words = tensor.detach().contiguous()
    return (
        tuple(tensor.shape),
        tensor.stride(),
        words.view(-1).view(torch.uint8).numpy().tobytes() if words.numel() else b"",
    )


def describe_graph(node, seen=None):
    """Names and edges of the autograd graph below a node, in the order of a walk."""
    seen = {} if seen is None else seen
    if node is None:
        return None
    if node in seen:
        return seen[node]
    seen[node] = len(seen)
    return (node.name(), [(describe_graph(below, seen), number) for below, number in node.next_functions])


def train(kind: Kind, session=None, steps: int = 3):
    """What a run leaves behind, as bits: outputs, graphs, gradients, parameters, random state."""
    torch.manual_seed(7)
    model = kind.build()
    optimizer = kind.optimizer(model.parameters())
    trace = []
    with session(model, optimizer) if session else contextlib.nullcontext() as recorder:
        for _ in range(steps):
            with recorder.step() if recorder else contextlib.nullcontext():
                batch = kind.batch()
                optimizer.zero_grad()
                output = model(*batch)
                loss = loss_of(output)
                trace.append([bits(leaf) for leaf in leaves(output)])
                trace.append(describe_graph(loss.grad_fn))
                trace.append([leaf._backward_hooks for leaf in leaves(output)])
                loss.backward()
                trace.append([bits(p.grad) for p in model.parameters() if p.grad is not None])
                trace.append([bits(x.grad) for x in batch if x.grad is not None])
                optimizer.step()
                trace.append([bits(t) for t in model.state_dict().values()])
                trace.append(torch.get_rng_state().numpy().tobytes())
    return trace, model, recorder


def make_sink() -> MemorySink:
    return MemorySink(RunInfo(run="test", created="", rank=0, world=1, device="cpu"))


class Record:
    """Runs a function inside a session and gives the dump."""

    def __call__(self, model, body, **options):
        self.sink = make_sink()
        with capture(model, None, sink=self.sink, **options) as recorder:
            body(recorder)
        return self.sink.dump()


@pytest.fixture(params=["compiled", "python"])
def twin(request, monkeypatch):
    """Both paths of recording in turn, see precision_align/recording/native."""
    monkeypatch.setenv(native.VARIABLE, request.param)
    if request.param == "compiled" and native.load_native() is None:
        pytest.skip("there is no C compiler with Python's headers here")
    return request.param


@pytest.fixture
def record():
    return Record()


@pytest.fixture(params=list(KINDS))
def kind(request):
    return KINDS[request.param]


@pytest.fixture
def kinds():
    return KINDS


@pytest.fixture
def run_training():
    return train


@pytest.fixture(name="loss_of")
def loss_of_fixture():
    return loss_of


@pytest.fixture(scope="session")
def new_sink():
    return make_sink


@pytest.fixture
def sink():
    return make_sink()
