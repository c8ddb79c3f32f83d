"""What every test needs before the first torch call."""

from __future__ import annotations

try:
    from precision_align.devices.simulated import reserve_device
except ImportError:  # the offline half's tests run without torch
    pass
else:
    # autograd counts the devices at its first backward pass: one that comes later could not run backward
    reserve_device()
