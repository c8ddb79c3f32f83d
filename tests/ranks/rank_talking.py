"""A module that runs every kind of collective."""

from __future__ import annotations

import torch
import torch.distributed as distributed
from torch import nn

import precision_align as pa


class Talking(nn.Module):
    """Every kind of collective there is."""

    def forward(self, x):
        rank, world = distributed.get_rank(), distributed.get_world_size()
        summed, low, largest = x.clone(), x.bfloat16(), x.clone()
        distributed.all_reduce(summed)
        handle = distributed.all_reduce(low, async_op=True)
        handle.wait()
        distributed.all_reduce(largest, op=distributed.ReduceOp.MAX)
        piece, other = x.new_zeros(4), x.new_zeros(4)
        distributed.reduce_scatter_tensor(piece, torch.cat([x] * world))
        distributed.reduce_scatter(other, [x * number for number in range(world)])
        whole, parts = x.new_zeros(4 * world), [x.new_zeros(4) for _ in range(world)]
        distributed.all_gather_into_tensor(whole, x)
        distributed.all_gather(parts, x)
        sent, reduced = x.clone(), x.clone()
        distributed.broadcast(sent, world - 1)
        distributed.reduce(reduced, 0)
        first = rank == 0
        distributed.gather(x, [x.new_zeros(4) for _ in range(world)] if first else None, dst=0)
        got = x.new_zeros(4)
        distributed.scatter(got, [x + number for number in range(world)] if first else None, src=0)
        swapped, uneven = x.new_zeros(4), x.new_zeros([1, 3][rank] * world)
        distributed.all_to_all_single(swapped, x)
        distributed.all_to_all_single(uneven, x, [[1, 3][rank]] * world, [1, 3])
        if first:
            distributed.send(x, 1)
        else:
            distributed.recv(got, 0)
        count = torch.tensor([rank + 1, 2])
        distributed.all_reduce(count)
        return summed + low + largest + other + piece + whole[:4] + parts[0] + sent + reduced + got + swapped + count[0]


def talk(rank, folder):
    """One call of :class:`Talking`, recorded."""
    torch.manual_seed(rank)
    model, x = Talking(), torch.randn(4)
    with pa.capture(model, folder / "talking", sources=("modules", "collectives")):
        model(x)
