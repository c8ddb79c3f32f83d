"""The stub CANN can fail what the suite asks: its copies are late, its memory is counted."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

import pytest
import torch

from precision_align.devices.aliasing import alias_on_cpu

pytestmark = pytest.mark.stub


@pytest.fixture
def library() -> Iterator[ctypes.CDLL]:
    """The stub, whose copies go on at the end whatever happens."""
    loaded = ctypes.CDLL("libascendcl.so")
    yield loaded
    loaded.stub_hold_copies(0)


def test_a_queued_copy_is_late_until_somebody_waits(library: ctypes.CDLL) -> None:
    host = torch.randn(1 << 12).pin_memory()
    device = torch.empty(1 << 12, device="npu").fill_(7)
    event = torch.npu.Event()
    torch.npu.synchronize()
    library.stub_hold_copies(1)
    device.copy_(host, non_blocking=True)
    event.record()
    early = alias_on_cpu(device).clone()
    assert not event.query()
    library.stub_hold_copies(0)
    event.synchronize()
    assert torch.equal(alias_on_cpu(device), host)
    assert early.unique().tolist() == [7]


def test_memory_goes_back() -> None:
    before = torch.npu.memory_allocated()
    kept = torch.ones(1 << 20, device="npu")
    assert torch.npu.memory_allocated() >= before + kept.numel() * 4
    del kept
    assert torch.npu.memory_allocated() == before
