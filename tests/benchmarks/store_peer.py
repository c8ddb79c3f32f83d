"""Records one step of the benchmark's model with msprobe: ``store_peer.py small|mid FOLDER FACTOR``.

FACTOR scales one layer's weight: the fault that a comparison is to find. Run by an interpreter that has msprobe.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import torch
from store_model import loss_of, make


def main() -> None:
    """Record, all tensors of modules and gradients."""
    from msprobe.pytorch import PrecisionDebugger

    size, folder, factor = sys.argv[1], sys.argv[2], float(sys.argv[3])
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model, tokens = make(size)
    with torch.no_grad():
        model.blocks[3].ln1.weight.mul_(factor)
    settings = {"scope": [], "list": [], "data_mode": ["all"], "summary_mode": "statistics"}
    config = {"task": "tensor", "dump_path": folder, "rank": [], "step": [], "level": "L0", "tensor": settings}
    path = Path(tempfile.mkdtemp()) / "config.json"
    path.write_text(json.dumps(config))
    debugger = PrecisionDebugger(config_path=str(path))
    debugger.start(model=model)
    loss_of(model, tokens).backward()
    debugger.stop()
    debugger.step()


if __name__ == "__main__":
    main()
