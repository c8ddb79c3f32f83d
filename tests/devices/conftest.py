"""The simulated device is claimed once a process: reserved before any test runs, installed when the first test asks."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from precision_align.devices import simulated

# At collection, hence before any test of this process can run a backward pass.
simulated.reserve_device()


@pytest.fixture
def npu() -> Iterator[None]:
    """The simulated device with profile `none`; whatever a test puts in force is taken back."""
    simulated.install_simulated("none")
    yield
    simulated.set_profile("none")


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Two runs are compared bit for bit; the number of threads may change the order of sums."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
