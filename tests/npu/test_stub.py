"""The stub CANN can fail what the suite asks: its copies are late, its memory is counted."""

from __future__ import annotations

import pytest
import torch

from precision_align.devices.aliasing import alias_on_cpu

pytestmark = pytest.mark.stub


def test_a_queued_copy_is_late_until_somebody_waits() -> None:
    host = torch.randn(1 << 12).pin_memory()
    device = torch.empty(1 << 12, device="npu")
    device.fill_(7)
    torch.npu.synchronize()
    device.copy_(host, non_blocking=True)
    early = alias_on_cpu(device).clone()
    torch.npu.synchronize()
    assert torch.equal(alias_on_cpu(device), host)
    assert not torch.equal(early, host)


def test_events_tell_when_a_copy_has_happened() -> None:
    device = torch.empty(1 << 12, device="npu")
    event = torch.npu.Event()
    torch.npu.synchronize()
    device.copy_(torch.ones(1 << 12).pin_memory(), non_blocking=True)
    event.record()
    event.synchronize()
    assert event.query()
    assert alias_on_cpu(device).sum() == 1 << 12


def test_memory_goes_back() -> None:
    before = torch.npu.memory_allocated()
    kept = torch.ones(1 << 20, device="npu")
    assert torch.npu.memory_allocated() >= before + kept.numel() * 4
    del kept
    assert torch.npu.memory_allocated() == before
