"""A small data-parallel training, right or with one fault of the kinds that published bugs have."""

from __future__ import annotations

import torch
import torch.distributed as distributed
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode

import precision_align as pa

ALL = ("modules", "gradients", "parameters", "optimizer", "collectives")


class Net(nn.Module):
    def __init__(self, batch_norm=False):
        super().__init__()
        self.embed = nn.Linear(6, 8)
        self.norm = nn.BatchNorm1d(8) if batch_norm else nn.LayerNorm(8)
        self.drop = nn.Dropout(0.1)
        self.act = nn.Tanh()
        self.head = nn.Linear(8, 5)

    def forward(self, x):
        return self.head(self.act(self.drop(self.norm(self.embed(x)))))


class Job:
    """One training on all ranks. Subclasses change one thing each."""

    batch_norm = False
    steps = 2
    lr = 0.1

    def __init__(self, rank, world):
        self.rank, self.world = rank, world

    def build(self):
        torch.manual_seed(0)
        return Net(self.batch_norm)

    def seed(self):
        return 100 + self.rank

    def draw(self, step, number):
        generator = torch.Generator().manual_seed(1000 * step + 10 * number + self.feed())
        size = self.size()
        x, y = torch.randn(size, 6, generator=generator), torch.randint(0, 5, (size,), generator=generator)
        y[: self.ignored()] = -100
        return x, y

    def feed(self):
        return self.rank

    def size(self):
        return 8

    def ignored(self):
        return 0

    def lose(self, out, y):
        return nn.functional.cross_entropy(out, y)

    def backward(self, net, step):
        x, y = self.draw(step, 0)
        self.lose(net(x), y).backward()

    def reduce(self, net):
        for name, parameter in net.named_parameters():
            self.reduce_one(name, parameter.grad)

    def reduce_one(self, name, grad):
        distributed.all_reduce(grad)
        grad /= self.world

    def optimize(self, net):
        return torch.optim.SGD(net.parameters(), lr=self.lr)

    def run(self, path):
        net = self.build()
        optimizer = self.optimize(net)
        torch.manual_seed(self.seed())
        with pa.capture(net, path, optimizer=optimizer, sources=ALL) as recorder:
            for step in range(self.steps):
                with recorder.step():
                    self.backward(net, step)
                    self.reduce(net)
                    optimizer.step()
                    optimizer.zero_grad()
        return net


class Clean(Job):
    pass


class NotReduced(Job):
    def reduce_one(self, name, grad):
        if name != "head.weight":
            super().reduce_one(name, grad)


class Bypassed(Job):
    def reduce(self, net):
        pass


class Twice(Job):
    def reduce_one(self, name, grad):
        distributed.all_reduce(grad)
        super().reduce_one(name, grad)


class Summed(Job):
    def reduce_one(self, name, grad):
        distributed.all_reduce(grad)


class Averaged(Job):
    """The loss is divided by the number of all ranks' tokens: gradients are to be summed, and are averaged."""

    def lose(self, out, y):
        return nn.functional.cross_entropy(out, y, reduction="sum") / (self.size() * self.world)


class Scaled(Job):
    """One parameter gets the group's size as a factor, as experts do whose gradients are multiplied by EP."""

    def reduce_one(self, name, grad):
        super().reduce_one(name, grad)
        if name == "head.bias":
            grad *= self.world


class Divided(Job):
    def reduce_one(self, name, grad):
        super().reduce_one(name, grad)
        if name == "norm.weight":
            grad /= self.world


class Skipped(Job):
    def reduce_one(self, name, grad):
        if self.rank == 1:
            grad.zero_()
        super().reduce_one(name, grad)


class LeftOut(Job):
    """Rank 1 does not take part: the others reduce among themselves."""

    def build(self):
        self.group = distributed.new_group([rank for rank in range(self.world) if rank != 1])
        return super().build()

    def reduce_one(self, name, grad):
        if self.rank != 1:
            distributed.all_reduce(grad, group=self.group)
            grad /= self.world - 1


class Weighted(Job):
    def reduce_one(self, name, grad):
        if self.rank == 1:
            grad *= 3
        super().reduce_one(name, grad)


class ClippedOnOne(Job):
    def reduce(self, net):
        super().reduce(net)
        if self.rank == 1:
            nn.utils.clip_grad_norm_(net.parameters(), 1e-2)


class MeanOfMeans(Job):
    def ignored(self):
        return 4 if self.rank == 1 else 0


class UnequalParameters(Job):
    def build(self):
        net = super().build()
        if self.rank == 1:
            with torch.no_grad():
                net.norm.weight[3] += 1e-4
        return net


class UnequalSeeds(Job):
    """Every rank initialised otherwise, and nothing sent around: not to be taken for stages or experts."""

    def build(self):
        super().build()
        torch.manual_seed(self.rank)
        return Net()


class UnequalOutputs(Job):
    """Ranks with one batch, as in tensor parallelism, of which rank 1 computes something else."""

    def feed(self):
        return 0

    def seed(self):
        return 100

    def build(self):
        net = super().build()
        if self.rank == 1:
            net.act.register_forward_hook(lambda module, args, output: output * 1.001)
        return net


class UnequalDraws(Job):
    def feed(self):
        return 0


class EqualDraws(Job):
    def seed(self):
        return 100


class UnequalBuffers(Job):
    batch_norm = True


class OtherRate(Job):
    def optimize(self, net):
        return torch.optim.SGD(net.parameters(), lr=0.2 if self.rank == 1 else 0.1)


class OtherBatch(Job):
    def size(self):
        return 4 if self.rank == 1 else 8


class BrokenCollective(Job):
    """A communication library whose sum comes out wrong on rank 1."""

    class Library(TorchDispatchMode):
        def __init__(self, rank):
            super().__init__()
            self.rank = rank

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            if "allreduce_" in str(func) and args[0][0].shape == (5,):
                distributed.Work.unbox(result[1]).wait()
                args[0][0][2] *= 1.01 if self.rank == 1 else 1
            return result

    def run(self, path):
        with self.Library(self.rank):
            return super().run(path)


FAULTS = {
    NotReduced: ("not reduced", 0, "head.weight"),
    Bypassed: ("not reduced", 0, ""),
    Twice: ("reduced twice", 0, ""),
    Summed: ("summed not averaged", 0, ""),
    Averaged: ("averaged not summed", 0, ""),
    Scaled: ("summed not averaged", 0, "head.bias"),
    Divided: ("averaged not summed", 0, "norm.weight"),
    Skipped: ("rank left out", 1, ""),
    LeftOut: ("rank left out", 1, ""),
    Weighted: ("rank weighted", 1, ""),
    ClippedOnOne: ("rank scaled", 1, ""),
    MeanOfMeans: ("mean of means", 1, ""),
    UnequalParameters: ("replica parameters", 1, "norm.weight"),
    UnequalSeeds: ("replica parameters", 1, None),
    UnequalOutputs: ("replica outputs", 1, "act"),
    UnequalDraws: ("generators unequal", None, "drop"),
    EqualDraws: ("generators equal", None, "drop"),
    UnequalBuffers: ("replica buffers", None, "norm"),
    OtherRate: ("rank rate", 1, ""),
    OtherBatch: ("rank batch", 1, ""),
    BrokenCollective: ("collective", 1, None),
}


class Wrapped(Job):
    """DistributedDataParallel, in other buckets and another order than the parameters'."""

    def build(self):
        return DistributedDataParallel(super().build(), bucket_cap_mb=0.0001, gradient_as_bucket_view=True)

    def reduce(self, net):
        pass


class Buffered(Wrapped):
    batch_norm = True


class Scattered(Job):
    """Reduce-scatter and all-gather do what all-reduce does."""

    def reduce_one(self, name, grad):
        flat = grad.reshape(-1)
        lacking = -flat.numel() % self.world
        flat = torch.cat([flat, flat.new_zeros(lacking)])
        piece = flat.new_empty(flat.numel() // self.world)
        distributed.reduce_scatter_tensor(piece, flat)
        distributed.all_gather_into_tensor(flat, piece / self.world)
        grad.copy_(flat[: grad.numel()].reshape(grad.shape))


class Accumulated(Wrapped):
    """Three micro-batches, of which the last one alone is reduced."""

    def backward(self, net, step):
        for number in range(3):
            x, y = self.draw(step, number)
            if number < 2:
                with net.no_sync():
                    (self.lose(net(x), y) / 3).backward()
            else:
                (self.lose(net(x), y) / 3).backward()


class Reordered(Job):
    """A group whose ranks come in another order."""

    def build(self):
        self.group = distributed.new_group([*reversed(range(self.world))], sort_ranks=False)
        return super().build()

    def reduce_one(self, name, grad):
        distributed.all_reduce(grad, group=self.group)
        grad /= self.world


class Clipped(Job):
    def reduce(self, net):
        super().reduce(net)
        nn.utils.clip_grad_norm_(net.parameters(), 1e-2)


class WeightedByTokens(MeanOfMeans):
    """Each rank's gradient weighs what its tokens do: the mean over all tokens."""

    def lose(self, out, y):
        total = torch.tensor(float((y >= 0).sum()))
        distributed.all_reduce(total)
        return nn.functional.cross_entropy(out, y, reduction="sum") / total

    def reduce_one(self, name, grad):
        distributed.all_reduce(grad)


class Sharded(Wrapped):
    """FSDP2: parameters and gradients in shards."""

    def build(self):
        from torch.distributed.fsdp import fully_shard

        torch.manual_seed(0)
        net = Net()
        fully_shard(net.head)
        return fully_shard(net)


BENIGN = [Clean, Wrapped, Buffered, Scattered, Accumulated, Reordered, Clipped, WeightedByTokens, Sharded]


def run_jobs(rank, world, folder, jobs):
    """All of them, one after the other, each into a dump of its name."""
    for job in jobs:
        job(rank, world).run(folder / job.__name__)
