"""``precision-align demo`` as a process, and the right and wrong ports of its model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from programs import run_python

from precision_align.core.errors import UsageError
from precision_align.demo.places import check_reports, prepare_folder


@pytest.mark.slow
def test_the_whole_demo(tmp_path: Path) -> None:
    done = run_python("-m", "precision_align", "demo", "--json", "--steps", "12", "--out", tmp_path)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert "emulated numerics, not Ascend" in result["device"]
    assert (result["losses"]["parted"], result["losses"]["onset"]) == (True, 0)
    assert 0.02 < result["losses"]["mean_error"] < 0.5
    first = result["report"]["first"]
    assert (first["scope"], first["phase"], first["call"], first["step"]) == (
        "blocks.0.attention.rotary",
        "forward",
        0,
        0,
    )
    assert first["mapping"]["op"] == "rope"
    failed = {(item["op"], item["case"]) for item in result["cases"]["results"] if item["status"] == "fail"}
    assert ("rope", "interleaved") in failed
    assert result["repaired"]["verdict"] == "aligned"
    assert result["repaired"]["coverage"]["forward"]["judged"] > 0
    assert {path.name for path in tmp_path.iterdir()} == {"report.html", "report.json", "demo-runs"}
    assert done.stderr.count("/7]") == 7
    assert_verbs_work_on_its_files(tmp_path)


def assert_verbs_work_on_its_files(folder: Path) -> None:
    runs = folder / "demo-runs"
    loss = run_python("-m", "precision_align", "loss", runs / "reference", runs / "repaired", "--no-plot")
    assert loss.returncode == 0, loss.stdout + loss.stderr
    shown = run_python("-m", "precision_align", "report", folder / "report.json")
    assert shown.returncode == 0, shown.stderr
    assert "blocks.0.attention.rotary" in shown.stdout
    assert "rope/interleaved: fail" in shown.stdout
    check_reports([folder / "report.html", folder / "report.json"])
    prepare_folder(runs)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--steps", "0"], "steps"),
        (["--steps", "many"], "steps"),
        (["--fault", "nonsense"], "nonsense"),
        (["--fault", "melt@blocks.0"], "melt"),
        (["--fault", "scale@blocks.9.mlp.down"], "No module of the model fits"),
    ],
)
def test_mistakes_are_told_before_any_work(tmp_path: Path, words: list[str], message: str) -> None:
    done = run_python("-m", "precision_align", "demo", "--out", tmp_path, *words)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_files_of_others_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "report.html").write_text("<html>my own report</html>")
    done = run_python("-m", "precision_align", "demo", cwd=tmp_path)
    assert done.returncode == 2
    assert "report.html" in done.stderr
    assert (tmp_path / "report.html").read_text() == "<html>my own report</html>"
    assert not (tmp_path / "demo-runs").exists()


def test_folders_of_others_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "demo-runs").mkdir()
    (tmp_path / "demo-runs" / "thesis.txt").write_text("mine")
    with pytest.raises(UsageError, match="thesis"):
        prepare_folder(tmp_path / "demo-runs")
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="is a file"):
        prepare_folder(tmp_path / "file")
    (tmp_path / "report.json").mkdir()
    with pytest.raises(UsageError, match="is a folder"):
        check_reports([tmp_path / "report.json"])


PORT = """
from precision_align.devices.torch_npu_lookalike import install_lookalike
install_lookalike()
import torch
from precision_align.demo.ascend import RIGHT, WRONG, replace_operators
from precision_align.demo.model import build_model
from precision_align.demo.text import draw_batches, load_text
model, right, wrong = build_model(), build_model(), build_model()
assert replace_operators(right, RIGHT) == replace_operators(wrong, WRONG) == 15
tokens, targets = next(draw_batches(load_text(), 2, 32))
losses = [port(tokens, targets) for port in (model, right, wrong)]
for loss in losses:
    loss.backward()
gradients = [[parameter.grad for parameter in port.parameters()] for port in (model, right, wrong)]
assert abs(losses[0] - losses[1]) < 1e-6 < 1e-5 < abs(losses[0] - losses[2])
assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(*gradients[:2]))
assert not all(torch.allclose(a, b, atol=1e-5) for a, b in zip(gradients[0], gradients[2]))
"""


def test_the_right_port_computes_the_same_and_the_wrong_one_does_not() -> None:
    done = run_python("-c", PORT)
    assert done.returncode == 0, done.stderr
