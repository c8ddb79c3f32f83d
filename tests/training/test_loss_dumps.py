"""Curves out of dumps: their batches, the plan of what to record, and commands that can be typed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from precision_align.recording.zoomplans import read_zoom_plan, write_zoom_plan
from precision_align.reporting.losses import describe_losses
from precision_align.reporting.resultpages import render_page
from precision_align.training.curves import compare_losses

torch = pytest.importorskip("torch")
Make = Callable[..., Any]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Four recordings of one small training: as it is, with a wrong weight from step 6 on, other data, later data."""
    from precision_align.recording.session import capture

    folder = tmp_path_factory.mktemp("curves")
    paths = {}
    for name in ("reference", "wrong", "other", "shifted"):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 4))
        optimizer = torch.optim.SGD(model.parameters(), 1e-2)
        paths[name] = folder / name
        with capture(model, paths[name], optimizer=optimizer, facts=True, payload="fingerprint") as recorder:
            for step in range(10):
                seed = step + {"other": 100, "shifted": 2}.get(name, 0) * (step >= 4)
                with recorder.step():
                    if name == "wrong" and step == 6:
                        with torch.no_grad():
                            model[2].weight.mul_(1.5)
                    loss = model(torch.randn(16, 8, generator=torch.Generator().manual_seed(seed))).square().mean()
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
    return paths


def test_equal_batches_leave_the_arithmetic(runs: dict[str, Path]) -> None:
    report = compare_losses(runs["reference"], runs["wrong"])
    assert (report.onset, report.cause) == (6, "numerical")
    assert report.order is not None
    assert (report.order.kind, report.order.compared) == ("same", 10)


@pytest.mark.parametrize(
    ("name", "kind", "cause", "shift"),
    [("other", "other", "other data", None), ("shifted", "shifted", "data order", 2)],
)
def test_batches_that_differ_are_the_cause(
    runs: dict[str, Path], name: str, kind: str, cause: str, shift: int | None
) -> None:
    report = compare_losses(runs["reference"], runs[name])
    assert report.order is not None
    assert (report.order.kind, report.order.step) == (kind, 4)
    assert (report.onset, report.cause, report.shift) == (4, cause, shift)


def test_recorded_steps_are_compared_and_others_captured(runs: dict[str, Path], tmp_path: Path) -> None:
    report = compare_losses(runs["reference"], runs["wrong"])
    text = render_page(describe_losses(report), 200)
    assert f"precision-align compare {runs['reference']} {runs['wrong']}" in text
    logs = []
    for name in ("reference", "wrong"):
        series = compare_losses(runs[name], runs[name]).reference
        logs.append(tmp_path / f"{name}.log")
        logs[-1].write_text(
            "".join(f"step {step} loss {value:.9f}\n" for step, value in zip(series.steps, series.values))
        )
    logged = compare_losses(*logs)
    assert logged.capture is not None
    write_zoom_plan(logged.capture.to_zoom_plan(), tmp_path / "next.toml")
    assert read_zoom_plan(tmp_path / "next.toml").steps == "5-6"
    text = render_page(describe_losses(logged, plan="next.toml"), 200)
    assert "precision-align capture --plan next.toml -o reference-step6 -- train.py" in text
    assert "precision-align compare reference-step6 candidate-step6" in text
    assert "REFERENCE_DUMP" not in text


def test_the_command_of_a_dump_is_typed_again(runs: dict[str, Path]) -> None:
    report = compare_losses(runs["reference"], [(step, 9.0) for step in range(20, 30)] + [(0, 5.0), (1, 5.0)])
    text = render_page(describe_losses(report), 400)
    assert f"-- {report.reference.command.split()[0]}" in text
