"""``precision-align loss`` as a process: exit status, streams, messages."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from programs import make_environment, run_python


def run_loss(*words: object, **environment: str) -> subprocess.CompletedProcess[str]:
    return run_python("-m", "precision_align", "loss", *words, env=make_environment(**environment))


@pytest.fixture(name="logs")
def write_logs(tmp_path: Path) -> tuple[Path, Path]:
    reference, candidate = tmp_path / "cuda.log", tmp_path / "npu.log"
    reference.write_text("".join(f"step {i} loss {3 - i / 50:.6f}\n" for i in range(60)), encoding="utf-8")
    candidate.write_text(
        "".join(f"step {i} loss {(3 - i / 50) * (1.02 if i >= 30 else 1):.6f}\n" for i in range(60)), encoding="utf-8"
    )
    return reference, candidate


def test_curves_that_part(logs: tuple[Path, Path]) -> None:
    done = run_loss(*logs)
    assert done.returncode == 1
    assert "the curves part at step 30" in done.stdout
    assert "--steps 29-30" in done.stdout
    assert "⣿ candidate" in done.stdout
    assert done.stderr == ""


def test_curves_that_stay_together(logs: tuple[Path, Path]) -> None:
    done = run_loss(logs[0], logs[0], "--no-plot")
    assert done.returncode == 0
    assert "loss: the curves stay within their noise" in done.stdout


def test_json_is_all_there_is_on_stdout(logs: tuple[Path, Path]) -> None:
    done = run_loss(*logs, "--json")
    result = json.loads(done.stdout)
    assert (done.returncode, result["onset"], result["capture_steps"]) == (1, 30, [29, 30])
    assert len(result["reference"]["values"]) == 60


def test_json_with_nan_is_strict_json(logs: tuple[Path, Path]) -> None:
    logs[1].write_text(logs[1].read_text().replace("step 40 loss 2.244000", "step 40 loss nan"), encoding="utf-8")
    done = run_loss(*logs, "--json", "--band", "0.5")
    result = json.loads(done.stdout, parse_constant=pytest.fail)
    assert (done.returncode, result["onset"], result["kind"]) == (1, 40, "not a number")


@pytest.mark.parametrize("language", ["en", "zh"])
def test_nan_on_both_sides_passes_nothing(logs: tuple[Path, Path], language: str) -> None:
    logs[0].write_text(logs[0].read_text().replace("step 40 loss 2.200000", "step 40 loss nan"), encoding="utf-8")
    done = run_loss(logs[0], logs[0], "--no-plot", "--lang", language)
    assert done.returncode == 3
    assert {"en": "NOT JUDGED", "zh": "无法判定"}[language] in done.stdout


def test_ascii_where_the_terminal_has_nothing_else(logs: tuple[Path, Path]) -> None:
    done = run_loss(*logs, PYTHONIOENCODING="ascii")
    assert done.returncode == 1
    assert "# candidate" in done.stdout


def test_band_and_repeats(logs: tuple[Path, Path]) -> None:
    assert run_loss(*logs, "--band", "0.05").returncode == 0
    assert run_loss(*logs, "--band", "bfloat16").returncode == 1
    assert run_loss(*logs, "--repeat", logs[0], "--repeat", logs[0]).returncode == 1
    assert run_loss(*logs, "--repeat", logs[1]).returncode == 0


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (["REF", "missing.log"], 3, "missing.log"),
        (["REF", "REF", "--name", "grad norm"], 3, "'grad norm'"),
        (["REF", "REF", "--band", "float99"], 2, "float99"),
        (["REF", "REF", "--band", "-1"], 2, "band"),
        (["REF", "REF", "--pattern", "("], 2, "regular expression"),
        (["REF", "REF", "--band", "1e-3", "--repeat", "REF"], 2, "not both"),
        (["REF"], 2, "CAND"),
        (["REF", "REF", "--duplicates", "some"], 2, "duplicates"),
    ],
)
def test_mistakes(logs: tuple[Path, Path], words: list[str], status: int, message: str) -> None:
    done = run_loss(*(str(logs[0]) if word == "REF" else word for word in words))
    assert done.returncode == status
    assert message in done.stderr
    assert "[PA" in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_no_torch_is_loaded_for_logs(logs: tuple[Path, Path]) -> None:
    code = (
        "import sys; from precision_align.cli.app import main; main(['loss', *sys.argv[1:]]); "
        "assert not {'torch', 'h5py'} & set(sys.modules), 'loaded'"
    )
    done = subprocess.run([sys.executable, "-c", code, *map(str, logs)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
