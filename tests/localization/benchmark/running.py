"""Runs a bug's two sides and keeps what each recorded: the candidate computes in re-ordered arithmetic."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from localization_benchmark import Bug, Setup, train_step

from precision_align.devices.arithmetic import emulate
from precision_align.devices.profiles import Profile

# Sums of products in pieces of 8 from the end, other sums in blocks of 16: float32 accumulation kept, nothing
# bit-equal. (The profile's polynomial exp is off by 60 roundoffs: no conforming build, and found as such.)
REORDERED = Profile(
    name="reordered",
    k_block=8,
    k_order="reversed",
    reduction="blocks",
    reduction_block=16,
)


@dataclass(frozen=True)
class Recorded:
    """Both sides' dumps and the reference's module."""

    reference: Any
    candidate: Any
    module: torch.nn.Module


@contextmanager
def quiet() -> Iterator[None]:
    """One thread, and no warnings of torch about what the bugs do on purpose."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            yield
        finally:
            torch.set_num_threads(threads)


def record(bug: Bug, seed: int, dtype: torch.dtype) -> Recorded:
    """Build and record both sides in memory."""
    sides = [record_side(bug.build(faulty, seed, dtype), faulty) for faulty in (False, True)]
    return Recorded(*sides, bug.build(False, seed, dtype).model)


def record_side(setup: Setup, candidate: bool) -> Any:
    """One side's dump."""
    import precision_align as pa
    from precision_align.storage.memory import MemorySink

    sink = MemorySink()
    torch.manual_seed(99)
    with computing(candidate), pa.capture(setup.model, None, optimizer=setup.optimizer, sink=sink) as recorder:
        for batch in setup.batches:
            with recorder.step():
                train_step(setup, batch)
    return sink.dump()


@contextmanager
def computing(candidate: bool) -> Iterator[None]:
    """The candidate's arithmetic, or the machine's own."""
    if not candidate:
        yield
        return
    with emulate(REORDERED):
        yield
