"""Recording without payloads on a device: what is copied to the host a step, and what the training thread pays.

    python tests/benchmarks/device_summaries.py [--quick]

On the simulated NPU. The copies counted are those of any device; the times are not: the device's own work is done by
the training thread here, its operators cost some 20 us each in Python, and its copies cost nothing. "before" copies
each tensor to the host, as full dumps do. Fails where the tensors of a step come in more than one copy.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from unittest import mock

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from store_model import loss_of, make

import precision_align as pa
from precision_align.devices import backend
from precision_align.devices.simulated import install_simulated
from precision_align.recording.summaries import Summaries


class Copies:
    """Counts copies from the device to the host."""

    def __init__(self) -> None:
        self.count = 0
        self._copy = backend._copy_from

    def __call__(self, source: torch.Tensor, target: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
        self.count += source.device.type == "npu" and target.device.type == "cpu"
        return self._copy(source, target, non_blocking)


def run(size: str, tier: str, steps: int, copies: Copies) -> dict[str, Any]:
    """The least CPU time of the training thread a step, and the copies of the last."""
    model, tokens = make(size)
    model, tokens = model.to("npu"), tokens.to("npu")
    times = []
    with (
        tempfile.TemporaryDirectory() as folder,
        pa.capture(model, folder, overwrite=True, payload=tier, sources=("modules", "gradients")) as recorder,
    ):
        for _ in range(steps):
            copies.count, started = 0, time.thread_time()
            with recorder.step():
                loss_of(model, tokens).backward()
            times.append(time.thread_time() - started)
            model.zero_grad()
    return {"main_ms": round(min(times[1:]) * 1e3, 1), "copies": copies.count}


def main() -> int:
    """Exit status 1 where the tensors of a step did not come in one copy."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="the small model only")
    quick = parser.parse_args().quick
    install_simulated("none")
    torch.set_num_threads(1)
    copies, most = Copies(), 0
    library = torch.library.Library("aten", "IMPL")
    library.impl("_copy_from", copies, "PrivateUse1", allow_override=True)
    for size in ("small",) if quick else ("small", "mid"):
        for tier in ("statistics", "sketch"):
            after = run(size, tier, 4, copies)
            with mock.patch.object(Summaries, "take", return_value=None):
                before = run(size, tier, 4, copies)
            most = max(most, after["copies"])
            print(json.dumps({"model": size, "tier": tier, "before": before, "after": after}))
    return 0 if most <= 1 else 1


if __name__ == "__main__":
    raise SystemExit(main())
