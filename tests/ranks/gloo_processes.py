"""Real gloo process groups, forked from a server that has torch loaded: one start for many trainings.

Not from the test process: autograd does not work in a fork of a process that has run a backward pass.
"""

from __future__ import annotations

import gc
import multiprocessing
import traceback
from pathlib import Path

import torch
import torch.distributed as distributed

LOADED = [
    "torch.distributed.fsdp",
    "torch.distributed.tensor.parallel",
    "torch.distributed.pipelining",
    "precision_align.recording.session",
    "h5py",
]  # once, in the server; what a torch lacks is left out


def run_ranks(world, folder, work, *arguments, timeout=240):
    """Call ``work(rank, world, folder, *arguments)`` in as many processes; raises with the first traceback."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(LOADED)
    processes = [context.Process(target=_serve, args=(r, world, folder, work, arguments)) for r in range(world)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(timeout)
    stuck = [process for process in processes if process.is_alive()]
    for process in stuck:
        process.kill()
    failures = [path.read_text() for path in sorted(folder.glob("failed*"))]
    assert not failures, failures[0]
    assert not stuck, f"{len(stuck)} of {world} ranks hang"
    assert all(process.exitcode == 0 for process in processes)


def _serve(rank, world, folder, work, arguments):
    try:
        gc.freeze()  # what the server has loaded need not be looked through by each session
        torch.set_num_threads(1)  # no thread pool survives a fork
        distributed.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=world)
        work(rank, world, folder, *arguments)
        distributed.barrier()
        distributed.destroy_process_group()
    except BaseException:
        (folder / f"failed{rank}").write_text(traceback.format_exc())
        raise
