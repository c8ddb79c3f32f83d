"""Devices by name, and the messages where they are not there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from precision_align.core.errors import Unavailable, UsageError
from precision_align.devices import npu as npu_device
from precision_align.devices import simulated
from precision_align.devices.base import Device
from precision_align.devices.selection import DEVICE_NAMES, open_device

pytestmark = pytest.mark.live

ROOT = Path(__file__).parents[2]


def run_python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A fresh process with warnings as errors."""
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        check=False,
    )


@pytest.mark.usefixtures("npu")
@pytest.mark.parametrize("name", ["cpu", "simulated", "simulated:none"])
def test_a_device_answers_every_question(name: str) -> None:
    device = open_device(name)
    assert isinstance(device, Device)
    assert device.name == (name if ":" in name or name == "cpu" else "simulated:ascend910b")
    assert device.is_available()
    assert device.emulated == name.startswith("simulated")
    assert ("emulated, not Ascend" in device.describe()) == device.emulated
    assert {"python", "torch", "numpy"} <= set(device.versions())
    assert device.supports("float32")
    assert device.supports("torch.bfloat16")
    assert not device.supports("float31")
    assert not device.supports("load")
    assert device.memory()["peak"] > 0
    device.synchronize()
    device.manual_seed(3)
    state = device.get_rng_state()
    drawn = torch.rand(3, device=device.kind).cpu()
    device.set_rng_state(state)
    assert torch.equal(drawn, torch.rand(3, device=device.kind).cpu())


@pytest.mark.usefixtures("npu")
def test_modes_tell_every_switch_that_changes_results() -> None:
    device = open_device("simulated:ascend910")
    assert device.modes()["npu.overflow"] == "saturate"
    assert device.modes()["profile"] == "ascend910"
    assert device.modes()["deterministic"] is False
    device.set_deterministic(True)
    try:
        assert device.modes()["deterministic"] is True
    finally:
        device.set_deterministic(False)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("tpu", "Known: cpu, cuda, npu, simulated"),
        ("", "Unknown device"),
        ("CPU", "Unknown device"),
        ("cpu:0", 'only "simulated" takes a profile'),
        ("simulated:ascend42", "Unknown profile"),
        ("simulated:gone.toml", "cannot be read"),
    ],
)
def test_unknown_names(name: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        open_device(name)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_no_gpu() -> None:
    with pytest.raises(Unavailable, match="sees no CUDA device"):
        open_device("cuda")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_answers_every_question() -> None:
    device = open_device("cuda")
    assert device.memory()["total"] > 0
    assert "matmul.allow_tf32" in device.modes()
    assert device.versions()["cuda"]
    assert device.supports("float32")
    device.synchronize()


@pytest.mark.skipif(npu_device.is_real_torch_npu_present(), reason="torch_npu is installed")
def test_no_torch_npu() -> None:
    with pytest.raises(Unavailable, match="not installed"):
        open_device("npu")


BROKEN = {
    "no CANN": ('raise ImportError("libhccl.so: cannot open shared object file")', "TORCH_DEVICE_BACKEND_AUTOLOAD=0"),
    "no message": ("raise OSError()", "OSError"),
    "missing part": ("import a_module_that_is_not_there", "does not load"),
    "no device": (
        "import torch\n__version__ = '2.9'\ntorch.npu = type('n', (), {'is_available': lambda: False})",
        "no NPU",
    ),
}


@pytest.mark.parametrize("name", sorted(BROKEN))
def test_a_torch_npu_that_does_not_work(tmp_path: Path, name: str) -> None:
    content, message = BROKEN[name]
    (tmp_path / "torch_npu.py").write_text(content)
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "from precision_align.devices.selection import open_device\n"
        "from precision_align.core.errors import Unavailable\n"
        "try: open_device('npu')\n"
        "except Unavailable as error: print(error)\n"
    )
    done = run_python(code)
    assert message in done.stdout, done.stderr


def test_the_simulated_device_keeps_away_from_a_real_one(tmp_path: Path) -> None:
    (tmp_path / "torch_npu.py").write_text("__version__ = '2.9'")
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "import torch_npu\n"
        "from precision_align.devices.selection import open_device\n"
        "from precision_align.devices.simulated import reserve_device\n"
        "from precision_align.core.errors import Unavailable\n"
        "assert not reserve_device()\n"
        "try: open_device('simulated')\n"
        "except Unavailable as error: print(error)\n"
    )
    done = run_python(code)
    assert "real torch_npu is loaded" in done.stdout, done.stderr


def test_importing_the_package_and_its_names_loads_no_torch() -> None:
    modules = ("base", "selection", "profiles", "faults")
    lines = [f"import precision_align.devices.{module}" for module in modules]
    done = run_python("; ".join([*lines, "import sys", "print('torch' in sys.modules)"]))
    assert done.stdout.strip() == "False", done.stderr


def test_a_backward_pass_before_the_device_is_explained() -> None:
    code = (
        "import torch\n"
        "torch.ones(2, requires_grad=True).sum().backward()\n"
        "from precision_align.devices.simulated import install_simulated\n"
        "from precision_align.core.errors import Unavailable\n"
        "try: install_simulated('none')\n"
        "except Unavailable as error: print(error)\n"
    )
    done = run_python(code)
    assert "before the simulated NPU was installed" in done.stdout, done.stderr


def test_a_reserved_place_lets_the_device_come_later() -> None:
    code = (
        "import torch\n"
        "from precision_align.devices.simulated import install_simulated, reserve_device\n"
        "assert reserve_device() and reserve_device()\n"
        "assert not torch.accelerator.is_available()\n"
        "torch.ones(2, requires_grad=True).sum().backward()\n"
        "install_simulated('none')\n"
        "leaf = torch.ones(2, device='npu', requires_grad=True)\n"
        "(leaf * 3).sum().backward()\n"
        "print(leaf.grad.cpu().tolist())\n"
    )
    done = run_python(code)
    assert done.stdout.strip() == "[3.0, 3.0]", done.stderr


def test_another_extension_has_the_device_type() -> None:
    code = (
        "import torch\n"
        "torch.utils.rename_privateuse1_backend('foo')\n"
        "from precision_align.devices.simulated import install_simulated, reserve_device\n"
        "from precision_align.core.errors import Unavailable\n"
        "assert not reserve_device()\n"
        "try: install_simulated('none')\n"
        "except Unavailable as error: print(error)\n"
    )
    done = run_python(code)
    assert 'as "foo"' in done.stdout, done.stderr


@pytest.mark.usefixtures("npu")
def test_installing_twice_changes_the_profile_only() -> None:
    libraries = simulated._State.libraries
    assert simulated.install_simulated("ascend910b").name == "ascend910b"
    assert simulated.install_simulated("none").name == "none"
    assert simulated._State.libraries is libraries


def test_an_old_torch_is_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulated._State, "libraries", None)
    monkeypatch.setattr(torch, "__version__", "2.1.2+cpu")
    with pytest.raises(Unavailable, match=r"torch >= 2\.11.*2\.1\.2"):
        simulated.install_simulated("none")


def test_every_name_is_known() -> None:
    for name in DEVICE_NAMES:
        try:
            assert open_device(name).kind in ("cpu", "cuda", "npu")
        except Unavailable as error:
            assert name in str(error)  # noqa: PT017 - either outcome is right, by machine
