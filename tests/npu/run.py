"""Runs the suite of this folder on the real torch_npu over the stub CANN, with its task queue on and off.

    python tests/npu/run.py [--wheels DIR] [pytest arguments]

The wheel that fits the installed torch is put into a folder of its own (--wheels, default .venv-torch_npu), not into
the environment: there, plain `import torch` would fail for everybody.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
# TASK_QUEUE_ENABLE: 0, every operator is waited for; 1, torch_npu's default, a thread of its own hands them on.
# Whole programs start processes and take long: they run with the default only.
SUITES = {"0": ["test_conformance.py", "test_stub.py"], "1": ["."]}


def fetch_wheel(folder: Path) -> Path:
    """The folder of torch_npu for this torch, downloaded if need be."""
    wanted = version("torch").split("+")[0]
    target = folder / wanted
    if not (target / "torch_npu" / "__init__.py").exists():
        command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(target)]
        subprocess.run([*command, f"torch_npu=={wanted}"], check=True)
    return target


def prepare(wheels: Path) -> tuple[Path, Path]:
    """(folder of torch_npu, folder of the stub libraries)."""
    from precision_align.devices.stub_cann.building import build_stub

    return fetch_wheel(wheels), build_stub(wheels / "stub")


def build_environment(wheel: Path, stub: Path, queue: str) -> dict[str, str]:
    """The environment of a child that runs torch_npu over the stub."""
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(wheel)]),
        "PRECISION_ALIGN_STUB_CANN": str(stub),
        "TASK_QUEUE_ENABLE": queue,
        "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
        # long enough that whoever reads before synchronising reads old bytes
        "STUB_CANN_COPY_DELAY_US": "200",
    }


def run_suite(environment: dict[str, str], files: list[str], arguments: list[str]) -> int:
    """pytest in a child process."""
    command = [sys.executable, "-m", "pytest", "-q", *(str(HERE / name) for name in files), *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode


def main() -> int:
    """Exit status 0 where all passed both times."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--wheels", type=Path, default=ROOT / ".venv-torch_npu")
    known, arguments = parser.parse_known_args()
    started = time.monotonic()
    sys.path.insert(0, str(ROOT))
    wheel, stub = prepare(known.wheels)
    print(f"torch_npu and the stub CANN are ready after {time.monotonic() - started:.0f} s", flush=True)
    results = [run_suite(build_environment(wheel, stub, queue), files, arguments) for queue, files in SUITES.items()]
    print(f"the suite of torch_npu took {time.monotonic() - started:.0f} s", flush=True)
    return max(results)


if __name__ == "__main__":
    raise SystemExit(main())
