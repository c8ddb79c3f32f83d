"""Clean trainings of each family: health finds nothing, and says what it looked at."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from precision_align.training.health.checking import check_health

FAMILIES = ("mlp", "transformer", "convolution", "recurrent", "moe", "lora", "autocast", "scaler")


@pytest.mark.parametrize("family", FAMILIES)
def test_a_clean_training_is_healthy(training: Callable[..., Any], family: str) -> None:
    report = check_health(training(family).run())
    assert [finding for finding in report.findings if finding.code not in ("dead gradient",)] == []
    assert not report.faults
    assert report.checks["updates"] == 3
    assert report.checks["gradients"] > 0
    assert report.checks["gradient norm"] == 3
