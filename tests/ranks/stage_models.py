"""A model in stages of a pipeline, by torch's own schedules, and one with experts that several ranks share out."""

from __future__ import annotations

import torch
import torch.distributed as distributed
from rank_models import ALL, Block, spoil
from torch import nn

import precision_align as pa

MICRO = 4


class Tower(nn.Module):
    """Some consecutive blocks, numbered from 0; the first stage embeds, the last has the head."""

    def __init__(self, blocks, first=True, last=True):
        super().__init__()
        if first:
            self.embed = nn.Linear(6, 8)
        self.blocks = nn.ModuleList(blocks)
        if last:
            self.head = nn.Linear(8, 5)

    def forward(self, x):
        x = self.embed(x) if hasattr(self, "embed") else x
        for block in self.blocks:
            x = block(x)
        return self.head(x) if hasattr(self, "head") else x


def make_tower():
    torch.manual_seed(3)
    return Tower([Block() for _ in range(4)])


def cut_tower(index, count):
    """The stage ``index`` of ``count``: its own names start at 0."""
    whole = make_tower()
    each = 4 // count
    stage = Tower(whole.blocks[index * each : (index + 1) * each], index == 0, index == count - 1)
    if index == 0:
        stage.embed = whole.embed
    if index == count - 1:
        stage.head = whole.head
    return stage


def draw_batch():
    generator = torch.Generator().manual_seed(100)
    return torch.randn(4, 4, 6, generator=generator), torch.randint(0, 5, (4, 4), generator=generator)


def lose(out, y):
    return nn.functional.cross_entropy(out.flatten(0, 1), y.flatten()) / MICRO


def train_tower(path):
    """On one device, in micro-batches."""
    net = make_tower()
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    with pa.capture(net, path, optimizer=optimizer, sources=ALL) as recorder, recorder.step():
        for x, y in zip(*(part.chunk(MICRO) for part in draw_batch())):
            lose(net(x), y).backward()
        optimizer.step()


def train_stages(rank, world, path, each=1, fault=""):
    """``each``: stages a rank, more than one is interleaved; ``fault``: "stage:module" whose results are 1 % off."""
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleInterleaved1F1B

    count = world * each
    indices = range(rank, count, world)
    chunks = nn.ModuleList([cut_tower(index, count) for index in indices])
    stage, _, module = fault.partition(":")
    if fault and int(stage) in indices:
        spoil(chunks[int(stage) // world].get_submodule(module))
    size = 4 // MICRO
    inner, outer = (torch.empty(size, 4, width, requires_grad=True) for width in (8, 5))
    stages = [
        PipelineStage(
            chunk,
            index,
            count,
            torch.device("cpu"),
            input_args=(torch.empty(size, 4, 6) if index == 0 else inner,),
            output_args=(outer if index == count - 1 else inner,),
        )
        for index, chunk in zip(indices, chunks)
    ]
    net = chunks if each > 1 else chunks[0]
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    kind = {"loss_fn": lose, "scale_grads": False}
    schedule = ScheduleInterleaved1F1B(stages, MICRO, **kind) if each > 1 else Schedule1F1B(stages[0], MICRO, **kind)
    x, y = draw_batch()
    with pa.capture(net, path, optimizer=optimizer, sources=ALL) as recorder, recorder.step():
        schedule.step(*([x] if rank == 0 else []), **({"target": y} if rank == world - 1 else {}))
        optimizer.step()


class Exchange(torch.autograd.Function):
    """Rows to the ranks that hold their experts; gradients go back."""

    @staticmethod
    def forward(ctx, rows, sent, got):
        ctx.sizes = sent, got
        out = rows.new_empty(sum(got), rows.shape[1])
        distributed.all_to_all_single(out, rows.contiguous(), got, sent)
        return out

    @staticmethod
    def backward(ctx, grad):
        sent, got = ctx.sizes
        out = grad.new_empty(sum(sent), grad.shape[1])
        distributed.all_to_all_single(out, grad.contiguous(), sent, got)
        return out, None, None


class Experts(nn.Module):
    """Each token through one of four experts, on one device or shared out over ``world`` ranks."""

    def __init__(self, rank=0, world=1):
        super().__init__()
        torch.manual_seed(5)
        self.embed = nn.Linear(6, 8)
        self.router = nn.Linear(8, 4)
        experts = [nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8)) for _ in range(4)]
        self.head = nn.Linear(8, 5)
        self.rank, self.world, self.each = rank, world, 4 // world
        self.experts = nn.ModuleList(experts[rank * self.each : (rank + 1) * self.each])

    def forward(self, x):
        x = self.embed(x)
        scores, choice = self.router(x).softmax(-1).max(-1)
        out = self.dispatch(x, choice, scores) if self.world > 1 else self.apply_experts(x, choice)
        return self.head(x + out * scores[:, None])

    def apply_experts(self, x, choice):
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            rows = (choice == number).nonzero()[:, 0]
            out = out.index_copy(0, rows, expert(x[rows]))
        return out

    def dispatch(self, x, choice, scores):
        """Those of an expert the surest first, as kernels with a capacity sort them."""
        order = torch.argsort(choice.double() * 10 - scores.detach().double())
        sent = torch.bincount(choice // self.each, minlength=self.world)
        got = torch.empty_like(sent)
        distributed.all_to_all_single(got, sent)
        kinds = torch.empty(int(got.sum()), dtype=choice.dtype)
        sent, got = sent.tolist(), got.tolist()
        distributed.all_to_all_single(kinds, choice[order].contiguous(), got, sent)
        done = self.apply_experts(Exchange.apply(x[order], sent, got), kinds - self.rank * self.each)
        back = Exchange.apply(done, got, sent)
        return torch.zeros_like(x).index_copy(0, order, back)


def train_experts(path, rank=0, world=1, fault=""):
    """``fault``: "rank:module" whose results are 1 % off."""
    net = Experts(rank, world)
    where, _, module = fault.partition(":")
    if fault and int(where) == rank:
        spoil(net.get_submodule(module))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    x, y = (part.flatten(0, 1).chunk(world)[rank] for part in draw_batch())
    with pa.capture(net, path, optimizer=optimizer, sources=ALL) as recorder, recorder.step():
        nn.functional.cross_entropy(net(x), y).backward()
        for name, parameter in net.named_parameters():
            if world > 1:
                if not name.startswith("experts"):
                    distributed.all_reduce(parameter.grad)
                parameter.grad /= world
        optimizer.step()


# name -> stages a rank, fault
STAGED = {
    "stages": (1, ""),
    "stages-fault": (1, "1:blocks.0.up"),
    "chunks": (2, ""),
    "chunks-fault": (2, "2:blocks.0.down"),
}
SHARED = {"experts": "", "experts-fault": "1:experts.0.0"}


def run_stages(rank, world, folder):
    """All of them between two ranks; between four a stage each."""
    for name, (each, fault) in STAGED.items():
        if world * each <= 4:
            train_stages(rank, world, folder / name, each, fault)
    if world == 2:
        for name, fault in SHARED.items():
            train_experts(folder / name, rank, world, fault)
