"""Whole programs on torch_npu: what patches the process, and the command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from precision_align.storage.opening import open_dump

ROOT = Path(__file__).resolve().parents[2]
STUB = os.environ.get("PRECISION_ALIGN_STUB_CANN", "")

# A program that needs kernels on the stub gets them by one import, before torch_npu: a user's needs none.
ON_STUB = """
import contextlib, os, sys
if os.environ.get("PRECISION_ALIGN_STUB_CANN"):
    import pathlib, torch
    from precision_align.devices.stub_cann import building, kernels, operators
    library = building.load_stub(pathlib.Path(os.environ["PRECISION_ALIGN_STUB_CANN"]))
    with contextlib.redirect_stdout(sys.stderr):
        import torch_npu
    kernels.install_kernels()
    operators.serve_operators(library)
"""


def run_python(*arguments: str, cwd: Path | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    """A child process; the loader finds the stub as it finds CANN, by LD_LIBRARY_PATH."""
    own = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    if STUB:
        own["LD_LIBRARY_PATH"] = os.pathsep.join([STUB, os.environ.get("LD_LIBRARY_PATH", "")])
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, env={**own, **environment}, check=False, cwd=cwd
    )


CUDA_SCRIPT = """
import sys
import torch
import torch_npu
from torch_npu.contrib import transfer_to_npu

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 4)).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
scaler = torch.cuda.amp.GradScaler(init_scale=8.0)
for step in range(2):
    inputs = torch.randn(8, 16, device="cuda")
    optimizer.zero_grad()
    with torch.cuda.amp.autocast():
        loss = model(inputs).float().square().mean()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
torch.cuda.synchronize()
print(model[0].weight.device.type, torch.cuda.is_available())
"""


@pytest.fixture(scope="module")
def cuda_dump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The dump of an unchanged CUDA script, ported by transfer_to_npu and captured by the command line."""
    folder = tmp_path_factory.mktemp("cuda")
    script = folder / "train.py"
    script.write_text(ON_STUB + CUDA_SCRIPT)
    done = run_python("-m", "precision_align", "capture", "-o", str(folder / "dump"), "--", str(script))
    assert done.returncode == 0, done.stderr
    assert "npu True" in done.stdout
    return folder / "dump"


def test_a_cuda_script_under_transfer_to_npu_is_captured(cuda_dump: Path) -> None:
    with open_dump(str(cuda_dump)) as dump:
        assert dump.info.device == "npu:0"
        assert dump.info.versions["torch_npu"]
        assert list(dump.steps) == [0, 1]
        outputs = {r.key.scope: r.dtype for r in dump.records if r.key.source == "module" and r.key.role == "output"}
        assert outputs["0"] == outputs["2"] == "float16"
        assert {"optimizer", "parameters", "module"} <= {str(record.key.source) for record in dump.records}
        assert not [record for record in dump.records if record.reason]


def test_the_doctor_examines_the_device() -> None:
    done = run_python("-c", ON_STUB + "from precision_align.cli.app import main\nmain(['doctor', '--json'])")
    found: dict[str, Any] = json.loads(done.stdout)
    checks = {check["name"]: check for check in found["checks"]}
    assert checks["device npu"]["status"] == "ok", done.stderr
    assert "npu:0 float32" in checks


WITHOUT_CANN = {
    "doctor": (["doctor", "--device", "npu"], "0"),
    "doctor, torch broken": (["doctor", "--json"], "1"),
    "case, torch broken": (["case", "run", "swiglu/empty", "--device", "npu"], "1"),
    "capture, torch broken": (["capture", "-o", "dump", "--", "script.py"], "1"),
}


@pytest.mark.skipif(not STUB, reason="this machine has CANN")
@pytest.mark.parametrize("name", WITHOUT_CANN)
def test_a_wheel_without_cann_is_one_clear_message(name: str, tmp_path: Path) -> None:
    """With autoloading on, even `import torch` fails there; with it off, only the device is missing."""
    (tmp_path / "script.py").write_text("import torch\n")
    arguments, autoload = WITHOUT_CANN[name]
    environment = {"LD_LIBRARY_PATH": "", "TORCH_DEVICE_BACKEND_AUTOLOAD": autoload}
    done = run_python("-m", "precision_align", *arguments, cwd=tmp_path, **environment)
    text = " ".join((done.stdout + done.stderr).split())
    assert done.returncode in (1, 2), text
    assert "Traceback" not in text
    assert "set_env.sh" in text
    assert "TORCH_DEVICE_BACKEND_AUTOLOAD=0" in text
