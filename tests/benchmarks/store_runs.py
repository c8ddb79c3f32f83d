"""What recording adds to a training step, and what comparing two runs takes, with msprobe beside it.

msprobe is run where the variable MSPROBE_PYTHON names an interpreter that has it; never a dependency of ours.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from diff import format_table
from store_commands import measure_command
from store_model import loss_of, make

import precision_align as pa

Row = tuple[str, ...]
HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
MODES: dict[str, dict[str, Any]] = {
    "armed but idle": {"steps": [10**9]},
    "taps only": {"select": ["no such module"]},
    "statistics + hash + sketch": {"payload": "sketch"},
    "full": {"payload": "full"},
}


class Timed:
    """A training loop that is timed step by step, recorded or not."""

    def __init__(self, size: str, folder: Path, options: dict[str, Any] | None) -> None:
        self.model, self.tokens = make(size)
        self.best, self.wall = float("inf"), float("inf")
        self._folder, self._options = folder, options

    @contextmanager
    def recording(self) -> Iterator[Any]:
        """The capture, or nothing."""
        if self._options is None:
            yield None
            return
        shutil.rmtree(self._folder, ignore_errors=True)
        sources = ("modules", "gradients")
        with pa.capture(self.model, self._folder, sources=sources, **self._options) as recorder:
            yield recorder

    def run(self, steps: int) -> None:
        """Some steps; the least CPU and wall time of one is kept. The writer's thread counts."""
        with self.recording() as recorder:
            for _ in range(steps):
                cpu, wall = time.process_time(), time.perf_counter()
                if recorder is None:
                    loss_of(self.model, self.tokens).backward()
                else:
                    with recorder.step():
                        loss_of(self.model, self.tokens).backward()
                    recorder._tape.sink.flush()
                self.best = min(self.best, time.process_time() - cpu)
                self.wall = min(self.wall, time.perf_counter() - wall)
                self.model.zero_grad()


def bench_steps(mode: str, folder: Path) -> list[Row]:
    """CPU of one step relative to an unrecorded one."""
    rows = []
    plan = {"small": 3, "mid": 1} if mode != "quick" else {"small": 2}
    for size, rounds in plan.items():
        loops = {"off": Timed(size, folder / "off", None)}
        loops |= {name: Timed(size, folder / "steps", options) for name, options in MODES.items()}
        for _ in range(rounds):
            for loop in loops.values():
                loop.run(3)
        off = loops["off"].best
        for name, loop in loops.items():
            rows.append((size, name, f"{loop.best * 1e3:.1f} ms", f"{loop.best / off:.3f}"))
        rows += [(size, *row) for row in run_msprobe(size, folder, rounds)]
    return rows


def run_msprobe(size: str, folder: Path, rounds: int) -> list[tuple[str, str, str]]:
    """The same steps under msprobe, beside its own unrecorded run."""
    python = os.environ.get("MSPROBE_PYTHON", "")
    if not python:
        return []
    times = {}
    for how in ("off", "statistics", "tensor"):
        place = folder / f"msprobe-{how}"
        shutil.rmtree(place, ignore_errors=True)
        given = how if how == "off" else f"msprobe:{how}:{place}"
        done = subprocess.run(
            [python, str(HERE / "store_model.py"), size, str(4 * rounds), given],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        times[how] = json.loads(done.stdout.strip().splitlines()[-1])["cpu"]
    return [
        (f"msprobe L0 {how}", f"{times[how] * 1e3:.1f} ms", f"{times[how] / times['off']:.3f}")
        for how in ("statistics", "tensor")
    ]


def bench_compare(mode: str, folder: Path) -> list[Row]:
    """The whole command on the same two runs: one layer of the second is a little off."""
    size = "small" if mode == "quick" else "mid"
    places = []
    for name, scale in (("reference", 1.0), ("candidate", 1.001)):
        torch.manual_seed(0)
        model, tokens = make(size)
        with torch.no_grad():
            model.blocks[3].ln1.weight.mul_(scale)
        place = folder / f"compare-{name}"
        with pa.capture(model, place, sources=("modules", "gradients")) as recorder, recorder.step():
            loss_of(model, tokens).backward()
        places.append(str(place))
    ours = [sys.executable, "-m", "precision_align", "compare", *places]
    rows = [("precision-align compare", *format_usage(measure_command(ours)))]
    theirs = folder / "msprobe-tensor" / "step1"
    python = os.environ.get("MSPROBE_PYTHON", "")
    if python and theirs.is_dir():
        (process,) = theirs.iterdir()
        msprobe = str(Path(python).parent / "msprobe")
        command = [msprobe, "compare", "-tp", f"{process}/dump.json", "-gp", f"{process}/dump.json"]
        (folder / "msprobe-out").mkdir()
        rows.append(
            (
                "msprobe compare (its L0 tensor dump)",
                *format_usage(measure_command([*command, "-o", str(folder / "msprobe-out")])),
            )
        )
        again = [sys.executable, "-m", "precision_align", "compare", str(theirs), str(theirs)]
        rows.append(("precision-align compare of that dump", *format_usage(measure_command(again))))
    return rows


def format_usage(usage: tuple[float, float, float]) -> tuple[str, str, str]:
    """As texts."""
    cpu, wall, memory = usage
    return f"{cpu:.2f} s", f"{wall:.2f} s", f"{memory:.0f} MB"


def bench(mode: str, folder: Path) -> Iterator[str]:
    """Both tables."""
    yield format_table("Step (modules and gradients)", ("model", "what", "CPU", "of off"), bench_steps(mode, folder))
    yield format_table("Compare, whole command", ("what", "CPU", "wall", "peak memory"), bench_compare(mode, folder))
