"""What comparing two runs takes, with msprobe beside it.

msprobe is run where the variable MSPROBE_PYTHON names an interpreter that has it; never a dependency of ours.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from diff import format_table
from store_commands import measure_command
from store_model import loss_of, make
from store_steps import HEADER, bench_steps

import precision_align as pa

Row = tuple[str, ...]
HERE = Path(__file__).resolve().parent


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
    ours = [sys.executable, "-m", "precision_align", "compare"]
    commands = {
        "precision-align, its own dumps, all replayed": [*ours, *places],
        "precision-align, its own dumps, all equal": [*ours, places[0], places[0]],
    }
    python = os.environ.get("MSPROBE_PYTHON", "")
    if python:
        dumps = [record_with_msprobe(python, size, folder / f"peer-{factor}", factor) for factor in ("1.0", "1.001")]
        files = [f"{dump}/dump.json" for dump in dumps]
        (folder / "msprobe-out").mkdir()
        peer = [str(Path(python).parent / "msprobe"), "compare", "-gp", files[0], "-tp", files[1], "-o"]
        commands["msprobe, its own dumps"] = [*peer, str(folder / "msprobe-out")]
        commands["precision-align, msprobe's dumps"] = [*ours, *dumps]
    # in turns, the least of each: other programs only make it more
    repeats = 1 if mode == "quick" else 3
    found = {name: [measure_command(command) for _ in range(repeats)] for name, command in commands.items()}
    best = {name: tuple(map(min, zip(*usages))) for name, usages in found.items()}
    limit = best.get("msprobe, its own dumps")
    return [(name, *format_usage(usage), format_ratio(limit, usage)) for name, usage in best.items()]


def record_with_msprobe(python: str, size: str, place: Path, factor: str) -> str:
    """The folder with its dump.json."""
    command = [python, str(HERE / "store_peer.py"), size, str(place), factor]
    subprocess.run(command, capture_output=True, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    return str(next(place.rglob("dump.json")).parent)


def format_ratio(limit: tuple[float, ...] | None, usage: tuple[float, ...]) -> str:
    """How many times less than msprobe: CPU, wall, memory."""
    return "" if limit is None else ", ".join(f"{theirs / ours:.1f}" for theirs, ours in zip(limit, usage))


def format_usage(usage: tuple[float, ...]) -> tuple[str, str, str]:
    """As texts."""
    cpu, wall, memory = usage
    return f"{cpu:.2f} s", f"{wall:.2f} s", f"{memory:.0f} MB"


def tabulate_steps(mode: str, folder: Path) -> Iterator[str]:
    """What recording costs."""
    yield format_table("Step (modules and gradients)", HEADER, bench_steps(mode, folder))


def tabulate_compare(mode: str, folder: Path) -> Iterator[str]:
    """What comparing costs."""
    header = ("what", "CPU", "wall", "peak memory", "times less than msprobe")
    yield format_table("Compare, whole command", header, bench_compare(mode, folder))
