"""The conformance suite on the devices of this machine. The real torch_npu runs it in tests/npu."""

from __future__ import annotations

import pytest
import torch

from precision_align.testing.devices import DeviceConformance

pytestmark = pytest.mark.live


class TestCpu(DeviceConformance):
    device_name = "cpu"


@pytest.mark.usefixtures("npu")
class TestSimulated(DeviceConformance):
    device_name = "simulated:none"


@pytest.mark.usefixtures("npu")
class TestSimulatedAscend910b(DeviceConformance):
    device_name = "simulated:ascend910b"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no GPU")
class TestCuda(DeviceConformance):
    device_name = "cuda"
