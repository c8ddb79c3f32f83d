"""doctor: what it finds here, and what it would say elsewhere."""

from __future__ import annotations

import json
import math
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from precision_align.devices import ascend
from precision_align.doctor import arithmetic, examination, software
from precision_align.doctor.checks import ABSENT, BAD, GOOD, NOTE, Check, is_healthy


def test_here(command: Any) -> None:
    outcome = command("doctor", "--device", "cpu")
    assert (outcome.status, outcome.err) == (0, "")
    for part in ("python ", "numpy ", "ok      cpu float32: matmul error", "nothing is broken"):
        assert part in outcome.out
    assert max(len(line) for line in outcome.out.splitlines()) <= 80


def test_json(command: Any) -> None:
    found = json.loads(command("doctor", "--json").out)
    assert found["healthy"] is True
    assert {check["status"] for check in found["checks"]} <= {"ok", "note", "absent"}
    assert found["versions"]["numpy"]


def test_missing_device_that_was_asked_for_is_bad(command: Any) -> None:
    outcome = command("doctor", "--device", "npu")
    assert outcome.status == 1
    assert "bad     device npu:" in outcome.out
    assert "checks failed" in outcome.out


def test_without_torch(command: Any) -> None:
    (command.folder / "torch.py").write_text("raise ImportError('libhccl.so: cannot open')", encoding="utf-8")
    program = [sys.executable, "-m", "precision_align", "doctor"]
    outcome = command.launch(program, (), {"PYTHONPATH": str(command.folder)})
    assert outcome.status == 1  # installed, but does not load
    assert "does not load: ImportError: libhccl.so" in outcome.out.replace("\n        ", " ")
    assert "TORCH_DEVICE_BACKEND_AUTOLOAD=0" in outcome.out.replace("\n        ", " ")


def test_torch_not_installed_is_not_broken() -> None:
    check = software.check_torch("")
    assert check.status == ABSENT
    assert "pip install" in check.advice
    assert is_healthy([check])


def test_old_torch_is_bad() -> None:
    pytest.importorskip("torch")
    assert software.check_torch("1.13.1+cpu").status == BAD
    assert software.check_torch("2.10.0a0+git123").status == GOOD


def round_to(values: np.ndarray[Any, Any], bits: int) -> np.ndarray[Any, Any]:
    mantissa, exponent = np.frexp(values)
    return np.asarray(np.ldexp(np.round(mantissa * 2.0**bits) / 2.0**bits, exponent))


@pytest.mark.parametrize(("bits", "status"), [(24, GOOD), (12, NOTE), (11, NOTE), (4, BAD)])
def test_matmul_precision_is_told_apart(bits: int, status: str) -> None:
    left, right = np.random.default_rng(0).standard_normal((2, arithmetic.SIZE, arithmetic.SIZE))
    actual = round_to(left, bits) @ round_to(right, bits)
    error = arithmetic.measure_error(actual, left @ right, np.abs(left) @ np.abs(right), 2.0**-24)
    assert arithmetic.judge_product("x", error, True).status == status


def test_nan_product_is_bad() -> None:
    ones = np.ones((2, 2))
    assert arithmetic.measure_error(ones * np.nan, ones, ones, 0.0) == math.inf
    assert arithmetic.judge_product("x", math.inf, True).status == BAD
    assert arithmetic.judge_product("x", 0.0, False).status == NOTE


def test_broken_driver_is_a_finding_not_a_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")

    def fail(*_: object) -> list[Check]:
        raise RuntimeError("driver version mismatch\nlong native trace")

    monkeypatch.setattr(examination, "check_products", fail)
    bad = [check for check in examination.check_device("cpu", True) if check.status == BAD]
    assert [check.text for check in bad] == ["RuntimeError: driver version mismatch"]


@pytest.mark.parametrize(
    ("name", "content", "version"),
    [
        (
            "version.cfg",
            "# version: 1.0\nruntime_running_version=[8.1.RC1.alpha002:8.1.RC1]\n",
            "8.1.RC1.alpha002:8.1.RC1",
        ),
        ("x86_64-linux/ascend_toolkit_install.info", "package_name=toolkit\nversion=8.0.RC3\n", "8.0.RC3"),
        ("compiler/version.info", "Version=7.6.0.1.220\n", "7.6.0.1.220"),
        ("version.cfg", "nothing here\n", ""),
    ],
)
def test_cann_version_from_its_files(tmp_path: Path, name: str, content: str, version: str) -> None:
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content, encoding="utf-8")
    assert ascend.find_cann_version({"ASCEND_HOME_PATH": str(tmp_path)}) == version


def test_tools_that_are_missing_or_fail_say_nothing() -> None:
    assert ascend.run_tool("no-such-tool-here") == ""
    assert ascend.run_tool("false") == ""
    assert ascend.run_tool("echo", "525.1").strip() == "525.1"


def test_a_lock_is_written_and_compared(command: Any) -> None:
    outcome = command("doctor", "--lock", "env.toml", OMP_NUM_THREADS="1")
    assert (outcome.status, outcome.err) == (0, "saved env.toml\n")
    outcome = command("doctor", "--against", "env.toml", OMP_NUM_THREADS="1", HCCL_CONNECT_TIMEOUT="600")
    assert outcome.status == 1
    assert "note    environment: HCCL_CONNECT_TIMEOUT: was not there, is 600" in outcome.out
    assert "-> unset HCCL_CONNECT_TIMEOUT" in outcome.out


def test_the_self_test_leaves_a_file(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    pytest.importorskip("torch")
    from precision_align.cli.app import main

    checks = ["test_is_a_device", "test_every_record_has_the_values_of_the_device"]  # all of them: tests/devices
    monkeypatch.setattr("precision_align.testing.devices.list_checks", lambda suite: checks)
    path = tmp_path / "self-test.json"
    assert main(["doctor", "--self-test", str(path), "--device", "cpu"]) == 0
    assert "2 passed; kept in" in " ".join(capsys.readouterr().out.split())
    kept = json.loads(path.read_text(encoding="utf-8"))
    assert [(one["check"], one["status"]) for one in kept["outcomes"]] == [(name, "passed") for name in checks]
    assert kept["facts"]["versions"]["torch"]


@pytest.mark.parametrize(("error", "status"), [(1e-7, GOOD), (1e-3, NOTE), (0.5, BAD), (math.nan, BAD)])
def test_an_operators_error_is_judged(error: float, status: str) -> None:
    assert arithmetic.judge_error(error) == status


def test_a_wrong_operator_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    real = arithmetic.list_operators()

    def list_changed() -> Any:
        def compute(given: Any) -> Any:
            right = real["gelu"](given)
            return right if right.dtype == torch.float64 else right * 1.1

        def fail(given: Any) -> Any:
            if given["x"].dtype != torch.float64:
                raise RuntimeError("no kernel")
            return real["sort"](given)

        return {
            **real,
            "gelu": compute,
            "sort": fail,
            "exp": lambda given: real["exp"](given) * (1 + 1e-4 * (given["x"].dtype == torch.float32)),
        }

    monkeypatch.setattr(arithmetic, "list_operators", list_changed)
    found = {check.status: check.text for check in arithmetic.check_operators("cpu")}
    assert "gelu (1e-01)" in found[BAD]
    assert "sort (RuntimeError: no kernel)" in found[BAD]
    assert "exp (1e-04)" in found[NOTE]
    assert "gelu" not in found[GOOD]


def list_chips(folder: Path) -> None:
    """An npu-smi that lists one chip."""
    tool = folder / "npu-smi"
    tool.write_text(
        "#!/bin/sh\necho '| npu-smi 24.1.1 |'\necho '| 0     910B3    | OK | 88.2   30   0 / 0 |'\n"
        "echo '| 0              | 0000:C1:00.0 | 0 0 / 0 |'\n",
        encoding="utf-8",
    )
    tool.chmod(0o755)


def test_chips_that_torch_cannot_use_are_an_error(command: Any) -> None:
    list_chips(command.folder)
    outcome = command("doctor", PATH=f"{command.folder}{os.pathsep}{os.environ['PATH']}")
    assert outcome.status == 1
    assert "ok      npu-smi: 1 x 910B3" in outcome.out
    assert "bad     device npu: " in outcome.out


def test_a_torch_npu_that_does_not_load_is_told(command: Any) -> None:
    package = command.folder / "torch_npu"
    package.mkdir()
    (package / "__init__.py").write_text("raise ImportError('libhccl.so: cannot open')", encoding="utf-8")
    found = command.folder / "torch_npu-2.13.0.dist-info"
    found.mkdir()
    (found / "METADATA").write_text("Metadata-Version: 2.1\nName: torch_npu\nVersion: 2.13.0\n", encoding="utf-8")
    outcome = command("doctor", PYTHONPATH=str(command.folder), TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    assert outcome.status == 0
    told = outcome.out.replace("\n        ", " ")
    assert "note    device npu: " in told
    assert "torch_npu is installed but does not load: ImportError: libhccl.so: cannot open. It needs CANN" in told


def test_every_line_that_is_not_ok_says_what_to_do(command: Any) -> None:
    checks = json.loads(command("doctor", "--json").out)["checks"]
    silent = [one["name"] for one in checks if one["status"] != GOOD and not one["advice"]]
    assert set(silent) <= {"device cuda", "device npu"}  # these have it in their text
