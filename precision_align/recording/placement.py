"""Where a launcher has put this process, from its environment alone: rank, world size, local rank. Imports no torch."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Optional

# (rank, world size, local rank), the nearest launcher first: torchrun (accelerate, deepspeed) may be started by srun or
# mpirun. Slurm's variables count only inside of `srun`, which sets the STEP's: a batch script sees SLURM_PROCID=0 of
# SLURM_NTASKS too, though it is one process that stands for none of them.
_LAUNCHERS = (
    ("RANK", "WORLD_SIZE", "LOCAL_RANK"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"),
)


def read_placement(environment: Optional[Mapping[str, str]] = None) -> tuple[Optional[int], int, int]:
    """(rank or None where no launcher says one, world size, local rank)."""
    given = os.environ if environment is None else environment
    for rank, world, local in _LAUNCHERS:
        found, size = _number(given, rank), _number(given, world)
        if found is not None and (size is not None or rank == "RANK"):
            return found, max(size or 1, found + 1), _number(given, local) or 0
    return None, 1, 0


def describe_placement(environment: Optional[Mapping[str, str]] = None) -> str:
    """A text that differs between processes to which a launcher has given different places."""
    given = os.environ if environment is None else environment
    return ",".join(f"{name}={given[name]}" for names in _LAUNCHERS for name in names if name in given)


def _number(environment: Mapping[str, str], name: str) -> Optional[int]:
    text = environment.get(name, "")
    return int(text) if text.isdigit() else None
