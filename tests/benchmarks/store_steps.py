"""What recording adds to a training step, with msprobe beside it.

Recorded and unrecorded steps of two equal models take turns in one process, and the modes take turns in rounds. Three
clocks: CPU of the thread that trains (the goals are set for this one: the dump is written by another), CPU of the whole
process until the step is on disk, and wall time of the step. The least of each counts, and the ratio of the least:
other programs only make it more. The row "nothing" compares two unrecorded loops: what it is off 1 is noise. Two rows
are limits (``store_limits.py``): hooks that do nothing, and hooks that copy every tensor once and do nothing else.

msprobe is run where the variable MSPROBE_PYTHON names an interpreter that has it; never a dependency of ours.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

from store_limits import hooked
from store_model import Clocks, loss_of, make, read_clocks

import precision_align as pa
from precision_align.core.errors import NothingCaptured

Row = tuple[str, ...]
HERE = Path(__file__).resolve().parent
MODES: dict[str, dict[str, Any]] = {
    "armed but idle": {"steps": [10**9]},
    "taps only": {"select": ["no such module"]},
    "statistics + hash": {"payload": "statistics"},
    "statistics + hash + sketch": {"payload": "sketch"},
    "full": {"payload": "full"},
}
# Whether hooks copy; None: there are none, which shows how far apart two equal loops are here and now.
LIMITS: dict[str, bool | None] = {"nothing": None, "limit: empty hooks": False, "limit: hooks and one copy": True}
HEADER = ("model", "what", "off", "main thread", "process", "wall", "of off: main", "process", "wall")
# Steps before the first that counts: memory is touched, caches fill.
_WARM_UP = 2
_ROUNDS = 2


class Loop:
    """A training loop that is timed step by step."""

    def __init__(self, size: str) -> None:
        self.model, self.tokens = make(size)

    def run(self, step: Callable[[], AbstractContextManager[Any]], finish: Callable[[], None]) -> Clocks:
        """One step inside ``step()``; ``finish`` waits for the disk: only the process's CPU counts it."""
        started = read_clocks()
        with step():
            loss_of(self.model, self.tokens).backward()
        ended = read_clocks()
        finish()
        self.model.zero_grad()
        return Clocks(ended.main - started.main, read_clocks().process - started.process, ended.wall - started.wall)


@contextmanager
def _unrecorded() -> Iterator[None]:
    yield


def time_mode(size: str, folder: Path, options: dict[str, Any], pairs: int) -> list[tuple[Clocks, Clocks]]:
    """Pairs of an unrecorded and a recorded step."""
    plain, recorded, found = Loop(size), Loop(size), []
    shutil.rmtree(folder, ignore_errors=True)
    idle = suppress(NothingCaptured)  # two of the modes record nothing on purpose
    with idle, pa.capture(recorded.model, folder, sources=("modules", "gradients"), **options) as recorder:
        flush = recorder._tape.sink.flush
        for _ in range(pairs + _WARM_UP):
            found.append((plain.run(_unrecorded, lambda: None), recorded.run(recorder.step, flush)))
    shutil.rmtree(folder, ignore_errors=True)
    return found[_WARM_UP:]


def time_limit(size: str, copies: bool | None, pairs: int) -> list[tuple[Clocks, Clocks]]:
    """Pairs of a step without hooks and one with hooks that do nothing, or copy; see ``LIMITS``."""
    plain, limited, found = Loop(size), Loop(size), []
    with nullcontext() if copies is None else hooked(limited.model, copies):
        for _ in range(pairs + _WARM_UP):
            found.append((plain.run(_unrecorded, lambda: None), limited.run(_unrecorded, lambda: None)))
    return found[_WARM_UP:]


def describe(size: str, what: str, pairs: list[tuple[Clocks, Clocks]]) -> Row:
    """One row: the least in ms, and the ratios of the least."""
    off, on = (Clocks(*map(min, zip(*side))) for side in zip(*pairs))
    ratios = [recorded / plain for recorded, plain in zip(on, off)]
    return (
        size,
        what,
        f"{off.main * 1e3:.1f} ms",
        *(f"{seconds * 1e3:.1f} ms" for seconds in on),
        *(f"{ratio:.3f}" for ratio in ratios),
    )


def bench_steps(mode: str, folder: Path) -> list[Row]:
    """Recorded steps relative to unrecorded ones."""
    plan = {"quick": {"small": 3}, "full": {"small": 20, "mid": 4}}.get(mode, {"small": 10, "mid": 3})
    rows = []
    for size, pairs in plan.items():
        found: dict[str, list[tuple[Clocks, Clocks]]] = {name: [] for name in (*LIMITS, *MODES)}
        for _ in range(1 if mode == "quick" else _ROUNDS):
            for name, copies in LIMITS.items():
                found[name] += time_limit(size, copies, pairs)
            for name, options in MODES.items():
                found[name] += time_mode(size, folder / "steps", options, pairs)
        rows += [describe(size, name, times) for name, times in found.items()]
        rows += [describe(size, f"msprobe L0 {task}", run_msprobe(size, folder, task, pairs)) for task in find_tasks()]
    return rows


def find_tasks() -> tuple[str, ...]:
    """What msprobe is asked for, where there is one."""
    return ("statistics", "tensor") if os.environ.get("MSPROBE_PYTHON") else ()


def run_msprobe(size: str, folder: Path, task: str, pairs: int) -> list[tuple[Clocks, Clocks]]:
    """The same pairs in msprobe's interpreter; its dump stays for the comparison."""
    place = folder / f"msprobe-{task}"
    shutil.rmtree(place, ignore_errors=True)
    done = subprocess.run(
        [os.environ["MSPROBE_PYTHON"], str(HERE / "store_model.py"), size, str(pairs + _WARM_UP), task, str(place)],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    found = json.loads(done.stdout.strip().splitlines()[-1])
    return [(Clocks(*plain), Clocks(*on)) for plain, on in found[_WARM_UP:]]
