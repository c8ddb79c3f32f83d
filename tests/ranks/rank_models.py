"""One small model on one device and, by torch's own means, on several: tensor parallel, FSDP2, DDP, and two at once."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import precision_align as pa

ALL = ("modules", "gradients", "parameters", "optimizer", "collectives")


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.up = nn.Linear(8, 16)
        self.act = nn.GELU()
        self.down = nn.Linear(16, 8)

    def forward(self, x):
        return x + self.down(self.act(self.up(self.norm(x))))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(6, 8)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.head = nn.Linear(8, 5)

    def forward(self, x):
        x = self.embed(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def make_model():
    torch.manual_seed(0)
    return Model()


def train(net, path, part=0, parts=1, dimension=0):
    """One step on this part of the batch of 4 sequences of 4 tokens, recorded; ``dimension``: along which it is cut."""
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    with pa.capture(net, path, optimizer=optimizer, sources=ALL) as recorder, recorder.step():
        generator = torch.Generator().manual_seed(100)
        x, y = torch.randn(4, 4, 6, generator=generator), torch.randint(0, 5, (4, 4), generator=generator)
        x, y = x.chunk(parts, dimension)[part], y.chunk(parts, dimension)[part]
        nn.functional.cross_entropy(net(x).flatten(0, 1), y.flatten()).backward()
        optimizer.step()


def spoil(module):
    """The fault of one rank: what this module computes is 1 % too large."""
    module.register_forward_hook(lambda module, args, output: output * 1.01)


def split_tensors(net, mesh, unreduced=""):
    """Column- and row-parallel linear layers; ``unreduced``: one whose partial sums are not added up."""
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    class Unreduced(RowwiseParallel):
        @staticmethod
        def _prepare_output_fn(output_layouts, use_local_output, mod, outputs, device_mesh):
            return outputs.to_local()

    plan = {}
    for index in range(2):
        plan[f"blocks.{index}.up"] = ColwiseParallel()
        down = f"blocks.{index}.down"
        plan[down] = Unreduced() if down == unreduced else RowwiseParallel()
    return parallelize_module(net, mesh, plan)


def shard(net, mesh):
    from torch.distributed.fsdp import fully_shard

    for block in net.blocks:
        fully_shard(block, mesh=mesh)
    return fully_shard(net, mesh=mesh)


def run_parallel(rank, world, folder, names):
    """Each of the named trainings into a dump of its name; on one rank a fault where the name says one."""
    from torch.distributed.device_mesh import init_device_mesh

    line = init_device_mesh("cpu", (world,), mesh_dim_names=("tp",))
    data = init_device_mesh("cpu", (world,), mesh_dim_names=("dp",))
    for name in names:
        kind, _, fault = name.partition("-")
        net = make_model()
        if fault and fault != "unreduced" and rank == 1:
            spoil(net.get_submodule(fault))
        if kind == "tp":
            split_tensors(net, line, "blocks.0.down" if fault == "unreduced" else "")
            train(net, folder / name)
        elif kind == "fsdp":
            train(shard(net, data), folder / name, rank, world)
        elif kind == "ddp":
            train(DistributedDataParallel(net), folder / name, rank, world)
        elif kind == "context":
            train(DistributedDataParallel(net), folder / name, rank, world, 1)
        else:
            square = init_device_mesh("cpu", (world // 2, 2), mesh_dim_names=("dp", "tp"))
            split_tensors(net, square["tp"])
            train(shard(net, square["dp"]), folder / name, rank // 2, world // 2)
