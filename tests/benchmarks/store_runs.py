"""What comparing two runs takes, with msprobe beside it.

msprobe is run where the variable MSPROBE_PYTHON names an interpreter that has it; never a dependency of ours.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from diff import format_table
from store_model import loss_of, make
from store_steps import HEADER, bench_steps

import precision_align as pa

Row = tuple[str, ...]
HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent

# A process starts with the peak of the one that forked it, so a small one stands between.
_MEASURE = """
import json, resource, subprocess, sys, time
started = time.perf_counter()
subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
usage = resource.getrusage(resource.RUSAGE_CHILDREN)
print(json.dumps([usage.ru_utime + usage.ru_stime, time.perf_counter() - started, usage.ru_maxrss / 1024]))
"""


def measure_command(command: list[str]) -> tuple[float, float, float]:
    """CPU seconds, wall seconds and peak memory in MB of a whole command and its children."""
    done = subprocess.run(
        [sys.executable, "-c", _MEASURE, *command], cwd=ROOT, capture_output=True, text=True, check=True
    )
    cpu, wall, memory = json.loads(done.stdout)
    return cpu, wall, memory


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
    yield format_table("Step (modules and gradients)", HEADER, bench_steps(mode, folder))
    yield format_table("Compare, whole command", ("what", "CPU", "wall", "peak memory"), bench_compare(mode, folder))
