"""What CUDA and Ascend devices have in common: a runtime module ``torch.<kind>`` with the same function names."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import torch

from precision_align.devices.cpu import CpuDevice


class AcceleratorDevice(CpuDevice):
    """A device whose runtime is ``torch.<kind>``; ``switches``: environment variables that change results."""

    switches: tuple[str, ...] = ()

    @property
    def runtime(self) -> Any:
        return getattr(torch, self.kind)

    def is_available(self) -> bool:
        return bool(self.runtime.is_available())

    def synchronize(self) -> None:
        self.runtime.synchronize()

    def get_rng_state(self) -> Any:
        return self.runtime.get_rng_state()

    def set_rng_state(self, state: Any) -> None:
        self.runtime.set_rng_state(state)

    def memory(self) -> Mapping[str, int]:
        return {
            "allocated": int(self.runtime.memory_allocated()),
            "peak": int(self.runtime.max_memory_allocated()),
            "total": int(self.runtime.get_device_properties(self.runtime.current_device()).total_memory),
        }

    def modes(self) -> Mapping[str, object]:
        environment = {name: os.environ[name] for name in self.switches if name in os.environ}
        return {**super().modes(), **environment}

    def describe(self) -> str:
        return f"{self.name}: {self.runtime.get_device_name()}, torch {torch.__version__}"
