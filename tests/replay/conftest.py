"""Runs two builds of a model and says what the comparison finds; test files stay free of set-up."""

from __future__ import annotations

import copy
from typing import Any, Callable

import pytest
import torch
from torch import nn

from precision_align.comparison.engine import Engine
from precision_align.divergence.locating import locate
from precision_align.recording.session import capture
from precision_align.storage.memory import MemorySink

torch.manual_seed(0)


def record_run(model: nn.Module, run: Callable[[nn.Module], Any], optimizer: Any = None, steps: int = 1):
    sink = MemorySink()
    with capture(model, None, optimizer=optimizer, sink=sink) as recorder:
        for _ in range(steps):
            with recorder.step():
                run(model)
    return sink.dump()


def compare_runs(reference, candidate, run, *, candidate_run=None, replay=True, steps=1):
    """Findings; ``replay``: True = the reference module's own code, None = recorded attributes only."""
    dumps = [record_run(reference, run, steps=steps), record_run(candidate, candidate_run or run, steps=steps)]
    return locate(Engine(*dumps, replay=copy.deepcopy(reference) if replay is True else replay).run())


def judge_alone(model, run, *, replay=None):
    """Rows of a run that is judged by code alone: nothing passes by hash."""
    return Engine(None, record_run(model, run), replay=replay).run().rows


def patch_output(module: nn.Module, change: Callable[[Any], Any]) -> nn.Module:
    """The module with another forward result, in place."""
    original = module.forward
    module.forward = lambda *args, **kwargs: change(original(*args, **kwargs))
    return module


def relative_noise(size: float, seed: int = 1) -> Callable[[Any], Any]:
    """Noise of a conforming build: uniform, relative, of ``size``."""
    generator = torch.Generator().manual_seed(seed)
    return lambda y: y * (1 + size * (2 * torch.rand(y.shape, generator=generator).to(y.dtype) - 1))


@pytest.fixture
def record():
    return record_run


@pytest.fixture
def compare():
    return compare_runs


@pytest.fixture
def judge():
    return judge_alone


@pytest.fixture
def patch():
    return patch_output


@pytest.fixture
def noisy():
    return relative_noise
