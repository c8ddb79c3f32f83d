"""doctor: what it finds here, and what it would say elsewhere."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from precision_align.cli import doctor
from precision_align.devices import ascend


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
    outcome = command("doctor", PYTHONPATH=str(command.folder))
    assert outcome.status == 1  # installed, but does not load
    assert "does not load: ImportError: libhccl.so" in outcome.out.replace("\n        ", " ")
    assert "TORCH_DEVICE_BACKEND_AUTOLOAD=0" in outcome.out.replace("\n        ", " ")


def test_torch_not_installed_is_not_broken() -> None:
    check = doctor.check_torch("")
    assert check.status == doctor.ABSENT
    assert "pip install" in check.advice
    assert doctor.is_healthy([check])


def test_old_torch_is_bad() -> None:
    pytest.importorskip("torch")
    assert doctor.check_torch("1.13.1+cpu").status == doctor.BAD
    assert doctor.check_torch("2.10.0a0+git123").status == doctor.GOOD


def round_to(values: np.ndarray[Any, Any], bits: int) -> np.ndarray[Any, Any]:
    mantissa, exponent = np.frexp(values)
    return np.asarray(np.ldexp(np.round(mantissa * 2.0**bits) / 2.0**bits, exponent))


@pytest.mark.parametrize(("bits", "status"), [(24, doctor.GOOD), (12, doctor.NOTE), (11, doctor.NOTE), (4, doctor.BAD)])
def test_matmul_precision_is_told_apart(bits: int, status: str) -> None:
    left, right = np.random.default_rng(0).standard_normal((2, doctor.SIZE, doctor.SIZE))
    actual = round_to(left, bits) @ round_to(right, bits)
    error = doctor.measure_error(actual, left @ right, np.abs(left) @ np.abs(right), 2.0**-24)
    assert doctor.judge_product("x", error, True).status == status


def test_nan_product_is_bad() -> None:
    ones = np.ones((2, 2))
    assert doctor.measure_error(ones * np.nan, ones, ones, 0.0) == math.inf
    assert doctor.judge_product("x", math.inf, True).status == doctor.BAD
    assert doctor.judge_product("x", 0.0, False).status == doctor.NOTE


def test_broken_driver_is_a_finding_not_a_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")

    def fail(*_: object) -> list[doctor.Check]:
        raise RuntimeError("driver version mismatch\nlong native trace")

    monkeypatch.setattr(doctor, "check_products", fail)
    bad = [check for check in doctor.check_device("cpu", True) if check.status == doctor.BAD]
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
