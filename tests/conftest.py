"""What every test needs before the first torch call. ``run_python`` of ``programs`` starts programs; see there."""

from __future__ import annotations

import os

# Before torch and NumPy's BLAS start: two test processes share two cores, where more threads only wait for each other;
# and two runs are compared bit for bit, while the number of threads may change the order of sums.
os.environ["OMP_NUM_THREADS"] = "1"

from hypothesis import HealthCheck, settings

# how long an example takes says more about the machine, which is shared, than about the test
settings.register_profile("shared", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("shared")

try:
    from precision_align.devices.simulated import reserve_device
except ImportError:  # the offline half's tests run without torch
    pass
else:
    # autograd counts the devices at its first backward pass: one that comes later could not run backward
    reserve_device()
