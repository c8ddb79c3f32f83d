"""msprobe and this package record the same step on the same torch_npu: their dumps must agree tensor by tensor.

    python tests/npu/msprobe_witness.py [--wheels DIR]

Not part of CI: msprobe's dependencies are half a gigabyte. They go into the folder of the wheels, not into the
environment. What it printed last is in msprobe_witness.txt.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MSPROBE = "mindstudio-probe==26.2.0"
# What `import msprobe.pytorch` needs of its dependencies; torch and numpy are there.
NEEDED = [
    "pandas<3", "openpyxl", "et_xmlfile", "pytz", "python-dateutil", "six", "pyyaml", "tqdm", "einops", "psutil",
    "matplotlib", "contourpy", "cycler", "fonttools", "kiwisolver", "pyparsing", "pillow", "tensorboard",
    "tensorboard-data-server", "protobuf", "absl-py", "grpcio", "markdown", "werkzeug", "skl2onnx", "onnx",
]  # fmt: skip


def fetch_msprobe(folder: Path) -> Path:
    """The folder of msprobe and what it imports, downloaded if need be."""
    if not (folder / "msprobe" / "__init__.py").exists():
        command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(folder)]
        subprocess.run([*command, MSPROBE, *NEEDED], check=True)
    return folder


def record_both(folder: Path) -> None:
    """The child: one step under msprobe, the same step under capture."""
    from conftest import load_torch_npu

    load_torch_npu()
    from msprobe.pytorch import PrecisionDebugger

    from precision_align import capture
    from precision_align.testing import models

    settings = {"scope": [], "list": [], "data_mode": ["all"]}
    plan = {"task": "tensor", "dump_path": str(folder / "msprobe"), "rank": [], "step": [], "level": "L0"}
    (folder / "config.json").write_text(json.dumps({**plan, "tensor": settings}))
    batch = models.make_batches("npu", 1)[0]

    model = models.build("npu")
    debugger = PrecisionDebugger(config_path=str(folder / "config.json"))
    debugger.start(model)
    models.backward_step(model, batch)
    debugger.stop()
    debugger.step()

    model = models.build("npu")
    with capture(model, folder / "ours") as recorder, recorder.step():
        models.backward_step(model, batch)


def compare_both(folder: Path) -> int:
    """Tensor by tensor by key; then as the two sides of a comparison. Returns the number of tensors that differ."""
    import numpy as np

    from precision_align import compare, open_dump

    with open_dump(folder / "msprobe") as theirs, open_dump(folder / "ours") as ours:
        known = {record.key for record in ours.records}
        missing = [record.key for record in theirs.records if record.key not in known]
        differing = [
            record.key
            for record in theirs.records
            if record.key in known and not np.array_equal(theirs.values(record.key), ours.values(record.key))
        ]
        print(f"{MSPROBE}: {len(theirs.records)} tensors; ours: {len(ours.records)}")
        print(f"of msprobe's, {len(missing)} are not in ours, {len(differing)} have other values")
        report = compare(ours, theirs)
        print(f"compare(ours, msprobe's): {report.verdict}")
        for phase, coverage in report.coverage.items():
            print(f"  {phase}: {coverage.judged} of {coverage.recorded} records judged")
    for key in [*missing, *differing]:
        print(f"  {key}")
    return len(missing) + len(differing) + (str(report.verdict) != "aligned")


def main() -> int:
    """Exit status 0 where the two agree."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--wheels", type=Path, default=ROOT / ".venv-torch_npu")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    known = parser.parse_args()
    if known.child:
        record_both(known.child)
        return 0
    from run import build_environment, prepare

    sys.path.insert(0, str(ROOT))
    wheel, stub = prepare(known.wheels)
    environment = build_environment(wheel, stub, "1")
    environment["PYTHONPATH"] += os.pathsep + str(fetch_msprobe(known.wheels / "msprobe"))
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, "--child", folder]
        done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(done.stdout + done.stderr)
        return compare_both(Path(folder))


if __name__ == "__main__":
    raise SystemExit(main())
