"""The same bugs through msprobe's dump and compare, in a process of its own: ``python incumbent.py TASK JOBS OUT``.

``JOBS``: a JSON list of [bug, seed, dtype]; a line of JSON for each goes to ``OUT``. Level L0 (modules), tensor and
statistics both; of several steps the last is dumped. What is blamed first is the first row of its table that is not
"pass". The model is wrapped once, since msprobe dumps the children of what it is given alone.
"""

from __future__ import annotations

import csv
import importlib
import json
import os
import re
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parents[2])]
ROW = re.compile(r"Module\.m\.?(.*?)\.?(\w+)\.(forward|backward|parameters_grad)\.\d+\.(\w+)")


def main(arguments: list[str]) -> int:
    import torch

    bugs = {bug.name: bug for bug in importlib.import_module("loading").load_benchmark().find_bugs()}
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    task = arguments[0]
    with tempfile.TemporaryDirectory() as work:
        debugger = make_debugger(task, Path(work))
        for number, (name, seed, dtype) in enumerate(json.loads(Path(arguments[1]).read_text())):
            try:
                found = run(bugs[name], seed, getattr(torch, dtype), debugger, Path(work), number)
            except (Exception, SystemExit) as error:
                found = {"scope": None, "phase": "", "error": f"{type(error).__name__}: {error}"[:200]}
            line = {"bug": name, "seed": seed, "dtype": dtype, "task": task, **found}
            with Path(arguments[2]).open("a") as out:
                out.write(json.dumps(line) + "\n")
    return 0


def make_debugger(task: str, work: Path) -> Any:
    from msprobe.pytorch import PrecisionDebugger

    settings = {"task": task, "dump_path": str(work / "dump"), "rank": [], "step": [], "level": "L0"}
    settings[task] = {"scope": [], "list": [], "data_mode": ["all"]}
    (work / "config.json").write_text(json.dumps(settings))
    return PrecisionDebugger(config_path=str(work / "config.json"))


def run(bug: Any, seed: int, dtype: Any, debugger: Any, work: Path, number: int) -> dict[str, Any]:
    """Both sides as two of the debugger's steps, then its compare."""
    import shutil

    import torch
    from localization_benchmark.running import computing

    class Holder(torch.nn.Module):
        def __init__(self, model: torch.nn.Module) -> None:
            super().__init__()
            self.m = model

        def forward(self, **inputs: Any) -> Any:
            return self.m(**inputs)

    from localization_benchmark import train_step

    for faulty in (False, True):
        setup = bug.build(faulty, seed, dtype)
        setup.model = Holder(setup.model)
        between = setup.between
        setup.between = None if between is None else lambda holder, between=between: between(holder.m)
        torch.manual_seed(99)
        with computing(faulty):
            for batch in setup.batches[:-1]:
                train_step(setup, batch)
            debugger.start(setup.model)
            train_step(setup, setup.batches[-1])
            debugger.stop()
            debugger.step()
    steps = [next((work / "dump" / f"step{2 * number + side}").glob("*")) for side in (0, 1)]
    found = compare(steps[0] / "dump.json", steps[1] / "dump.json", work / f"out{number}")
    for step in steps:
        shutil.rmtree(step.parent)
    return found


def compare(reference: Path, candidate: Path, out: Path) -> dict[str, Any]:
    """The first row that is not passed."""
    from msprobe.pytorch.compare.pt_compare import pt_compare

    pt_compare({"npu_path": str(candidate), "bench_path": str(reference)}, str(out))
    with next(out.glob("*.csv")).open(encoding="utf-8-sig") as table:
        for row in csv.DictReader(table):
            if row.get("Result") in ("error", "warning"):
                return name_row(next(iter(row.values())))
    return {"scope": None, "phase": ""}


def name_row(text: str) -> dict[str, Any]:
    found = ROW.match(text)
    if found is None:
        return {"scope": text, "phase": ""}
    scope, _, phase, role = found.groups()
    if role == "input":
        scope = scope.rpartition(".")[0]
    return {"scope": scope, "phase": "forward" if phase == "forward" else "backward", "row": text}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
