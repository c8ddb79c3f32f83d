"""Does a long armed run stay flat? ``store_armed.py STEPS FOLDER`` trains with a trigger and a ring in a fresh process.

Prints one JSON list: (step, resident MB, file descriptors, files, KiB on disk) now and then. ``series.jsonl`` is
limited to 256 KiB here, so that it reaches its limit (16 MiB by default) within a run of 20,000 steps.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

Row = tuple[str, ...]
SERIES_BYTES = 256 << 10
_PEEKS = 8  # rows of the table


def bench_armed(folder: Path, steps: int) -> list[Row]:
    """A trigger and a ring over many steps: memory, handles and disk."""
    command = [sys.executable, __file__, str(steps), str(folder / "armed")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return [
        (f"{step:,}", f"{resident:.0f} MB", str(handles), f"{files} files, {size:.0f} KiB")
        for step, resident, handles, files, size in json.loads(done.stdout)
    ]


def train(steps: int, folder: Path) -> list[tuple[float, ...]]:
    """Steps of a tiny model; the trigger fires once, in the middle."""
    import torch

    import precision_align as pa
    from precision_align.storage import series

    series.SERIES_BYTES = SERIES_BYTES
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.GELU(), torch.nn.Linear(16, 4))
    found: list[tuple[float, ...]] = []
    with pa.capture(model, folder, trigger="nan", ring=4) as recorder:
        for step in range(1, steps + 1):
            with recorder.step():
                batch = torch.full((2, 16), float("nan") if step == steps // 2 else 1.0)
                model(batch).sum().backward()
            model.zero_grad()
            if step % max(steps // _PEEKS, 1) == 0:
                found.append((step, *measure(folder)))
    return found


def measure(folder: Path) -> tuple[float, ...]:
    """Resident MB, open file descriptors, files in a folder and their KiB."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    files = [path.stat().st_size for path in folder.rglob("*") if path.is_file()]
    handles = len(list(Path("/proc/self/fd").iterdir()))
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6, handles, len(files), sum(files) / 1024


if __name__ == "__main__":
    print(json.dumps(train(int(sys.argv[1]), Path(sys.argv[2]))))
