"""The conformance suite on the devices of this machine. The real torch_npu runs it in tests/npu."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from precision_align.testing.devices import DeviceConformance, Inapplicable

pytestmark = pytest.mark.live


class Skipping(DeviceConformance):
    """Turns Inapplicable into a skip with its reason."""

    @pytest.fixture(autouse=True)
    def _skip(self) -> Iterator[None]:
        try:
            yield
        except Inapplicable as reason:
            pytest.skip(str(reason))


class TestCpu(Skipping):
    device_name = "cpu"


@pytest.mark.usefixtures("npu")
class TestSimulated(Skipping):
    device_name = "simulated:none"


@pytest.mark.usefixtures("npu")
class TestSimulatedAscend910b(Skipping):
    device_name = "simulated:ascend910b"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no GPU")
class TestCuda(Skipping):
    device_name = "cuda"
