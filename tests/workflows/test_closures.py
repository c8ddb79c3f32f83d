"""``optimizer.step(closure)``: the gradients are made inside the step, and are those the update is judged by."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import precision_align as pa


def train(path: Path, kind: type[torch.optim.Optimizer], noise: float, factor: float = 1.0) -> Path:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 2))
    optimizer = kind(model.parameters(), lr=1e-2 * factor)
    batch = torch.randn(16, 8) * (1 + noise)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(batch).square().mean()
        loss.backward()
        return loss

    with pa.capture(model, path, optimizer=optimizer) as recorder:
        for _ in range(2):
            with recorder.step():
                optimizer.step(closure)
    return path


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.Adagrad, torch.optim.SGD])
def test_noise_is_no_divergence_and_a_wrong_rate_is(tmp_path: Path, kind: type[torch.optim.Optimizer]) -> None:
    reference = train(tmp_path / "reference", kind, 0.0)
    report = pa.compare(reference, train(tmp_path / "noisy", kind, 1e-7))
    assert report.first is None or report.first.site == "inputs", report.first
    found = pa.compare(reference, train(tmp_path / "wrong", kind, 0.0, factor=1.01)).first
    assert (found.site, found.phase, found.step) == ("optimizer", "step", 0)
    assert "lr" in found.evidence
