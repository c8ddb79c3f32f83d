"""What is done to a run between its recorded calls is named, and what both runs do is not."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import precision_align as pa

Edit = Callable[[nn.Module, torch.optim.Optimizer, int], Any]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Linear(16, 2)
        self.register_buffer("shift", torch.zeros(16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.tanh(self.norm(self.first(x)) + self.shift))


def train(path: Path, edit: Edit | None = None, noise: float = 0.0, steps: int = 3) -> Path:
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    batches = torch.randn(steps, 12, 8) * (1 + noise)
    with pa.capture(model, path, optimizer=optimizer) as recorder:
        for step in range(steps):
            done = edit(model, optimizer, step) if edit is not None else None
            with recorder.step():
                loss = model(batches[step]).square().mean()
                if done != "no backward":
                    loss.backward()
                    if done != "no step":
                        optimizer.step()
                optimizer.zero_grad()
    return path


@torch.no_grad()
def scale_weight(model: Any, optimizer: Any, step: int) -> None:
    if step == 1:
        model.last.weight.mul_(1.001)


@torch.no_grad()
def move_buffer(model: Any, optimizer: Any, step: int) -> None:
    if step == 1:
        model.shift.add_(0.01)


def clear_state(model: Any, optimizer: Any, step: int) -> None:
    if step == 1:
        optimizer.state.clear()


def halve_momentum(model: Any, optimizer: Any, step: int) -> None:
    if step == 2:
        optimizer.state[model.first.weight]["exp_avg"].mul_(0.5)


def skip_step(model: Any, optimizer: Any, step: int) -> str:
    return "no step" if step == 1 else ""


def skip_backward(model: Any, optimizer: Any, step: int) -> str:
    return "no backward" if step == 1 else ""


def die(model: Any, optimizer: Any, step: int) -> None:
    if step == 2:
        raise RuntimeError("out of memory")


FAULTS = {
    scale_weight: ("last", "parameters", "forward", 1),
    move_buffer: ("", "parameters", "forward", 1),
    clear_state: (None, "optimizer", "step", 1),
    halve_momentum: ("first", "optimizer", "step", 2),
    skip_step: (None, "optimizer", "step", 1),
    skip_backward: ("", "inline", "backward", 1),
}


@pytest.mark.parametrize("edit", FAULTS)
@pytest.mark.parametrize("replay", [None, Net])
def test_what_only_the_candidate_does_is_named(tmp_path: Path, edit: Edit, replay: Any) -> None:
    found = pa.compare(train(tmp_path / "a"), train(tmp_path / "b", edit), replay=replay).first
    scope, *place = FAULTS[edit]
    assert [found.site, found.phase, found.step] == place
    assert scope is None or found.scope == scope


@pytest.mark.parametrize("edit", [scale_weight, move_buffer, clear_state, halve_momentum])
def test_what_both_do_is_no_divergence(tmp_path: Path, edit: Edit) -> None:
    report = pa.compare(train(tmp_path / "a", edit), train(tmp_path / "b", edit, noise=1e-8), replay=Net)
    assert report.first is None, report.first
    assert report.verdict == "aligned"


def test_a_run_that_died_is_not_aligned(tmp_path: Path) -> None:
    with contextlib.suppress(RuntimeError):
        train(tmp_path / "b", die)
    report = pa.compare(train(tmp_path / "a"), tmp_path / "b", replay=Net)
    assert report.verdict == "not comparable"
    assert any("ended with RuntimeError: out of memory" in note for note in report.notes)


def test_fewer_steps_are_compared_and_told(tmp_path: Path) -> None:
    report = pa.compare(train(tmp_path / "a"), train(tmp_path / "b", steps=2), replay=Net)
    assert report.verdict == "not comparable" or any("goes on" in note for note in report.notes)


def test_the_report_says_which_kernel_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRECISION_ALIGN_KERNEL", "numpy")
    report = pa.compare(train(tmp_path / "a"), train(tmp_path / "b", noise=1e-7), replay=Net)
    assert report.candidate["difference_kernel"] == "numpy"
