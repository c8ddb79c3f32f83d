"""The simulated device is claimed once a process: reserved before any test runs, installed when the first test asks."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from precision_align.devices import simulated

# device_models.py, shared by the test files here.
sys.path.insert(0, str(Path(__file__).parent))

# At collection, hence before any test of this process can run a backward pass.
simulated.reserve_device()


@pytest.fixture
def npu() -> Iterator[None]:
    """The simulated device with profile `none`; whatever a test puts in force is taken back."""
    if not simulated.is_supported():
        pytest.skip("the simulated device needs torch >= 2.11")
    simulated.install_simulated("none")
    yield
    simulated.set_profile("none")
