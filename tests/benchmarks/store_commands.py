"""What a whole command takes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent

# Installed packages have their bytecode; ours runs from a working tree, where a shell may forbid it.
_ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}

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
        [sys.executable, "-c", _MEASURE, *command],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        env=_ENVIRONMENT,
    )
    cpu, wall, memory = json.loads(done.stdout)
    return cpu, wall, memory
