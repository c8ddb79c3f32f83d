"""What runs in each group of processes, so that these are started once a world."""

from __future__ import annotations

import torch
from rank_models import run_parallel
from rank_talking import talk
from rank_trainings import BENIGN, FAULTS, Sharded, run_jobs
from stage_models import run_stages

NEW = torch.__version__ >= "2.6"  # fully_shard and DTensor have their public names from torch 2.6
# Every fault between two ranks; between four those that two ranks cannot show, and some of each kind.
SOME = ("LeftOut", "Weighted", "ClippedOnOne")
PARALLEL = {
    2: ["tp", "fsdp", "ddp", "context", "tp-blocks.1.up", "tp-unreduced", "fsdp-blocks.0.act", "ddp-blocks.1.norm"],
    4: ["tp", "both", "tp-blocks.1.down", "both-blocks.1.act"],
}


def list_jobs(world):
    """The trainings of a world."""
    known = [job for job in [*FAULTS, *BENIGN] if NEW or job is not Sharded]
    return known if world == 2 else [job for job in known if job.__name__ in SOME or job in (BENIGN[1], BENIGN[-1])]


def run_all(rank, world, folder):
    run_jobs(rank, world, folder, list_jobs(world))
    if NEW and world == 2:
        talk(rank, folder)
    if NEW:
        run_parallel(rank, world, folder, PARALLEL[world])
        run_stages(rank, world, folder)
