"""Recorded values put into a program's own tensors."""

from __future__ import annotations

import torch

from precision_align.core.errors import DumpError
from precision_align.core.records import TensorRecord
from precision_align.recording.shards import describe_shard, local_shard
from precision_align.recording.staging import untouched
from precision_align.replay.replayability import NotReplayable
from precision_align.replay.values import load_tensor
from precision_align.storage.base import Dump


class Unfit(Exception):
    """A recorded tensor cannot take this place; the text says why."""


def load(dump: Dump, record: TensorRecord) -> torch.Tensor:
    """A recorded tensor on the CPU. Raises Unfit."""
    try:
        return load_tensor(dump, record)
    except (NotReplayable, DumpError) as error:
        raise Unfit(str(error)) from error


def load_fitting(dump: Dump, record: TensorRecord, like: torch.Tensor) -> torch.Tensor:
    """A recorded tensor on the device and in the dtype of ``like``, of its shape; no view of anything. Raises Unfit."""
    if tuple(record.shape) != tuple(like.shape):
        raise Unfit(f"its shape is {tuple(record.shape)} in the reference")
    with untouched():
        return load(dump, record).to(like.device, like.dtype).clone()


def overwrite(dump: Dump, record: TensorRecord, tensor: torch.Tensor) -> None:
    """Give a tensor the recorded values; of a DTensor this rank's part. Raises Unfit."""
    if record.extra.get("shard") != describe_shard(tensor):
        raise Unfit("it is sharded in another way in the reference")
    local = local_shard(tensor)
    value = load_fitting(dump, record, local)
    with untouched():
        local.data.copy_(value)  # through .data: a graph that is being built is not to see a new version
