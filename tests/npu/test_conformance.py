"""The conformance suite, and what only torch_npu has."""

from __future__ import annotations

from precision_align.testing.ascend import AscendConformance


class TestNpu(AscendConformance):
    device_name = "npu"
