"""The CPU as a device: the reference that is always there. Other devices build on this class."""

from __future__ import annotations

import platform
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch


class CpuDevice:
    """Tensors in host memory. Subclasses change ``kind`` and what their runtime does differently."""

    kind = "cpu"
    emulated = False

    def __init__(self, name: str = "cpu") -> None:
        self.name = name

    def is_available(self) -> bool:
        return True

    def synchronize(self) -> None:
        """Nothing is queued on the CPU."""

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    def get_rng_state(self) -> Any:
        return torch.get_rng_state()

    def set_rng_state(self, state: Any) -> None:
        torch.set_rng_state(state)

    def versions(self) -> Mapping[str, str]:
        return {"python": platform.python_version(), "torch": str(torch.__version__), "numpy": np.__version__}

    def supports(self, dtype: str) -> bool:
        wanted = getattr(torch, dtype.replace("torch.", ""), None)
        if not isinstance(wanted, torch.dtype):
            return False
        try:
            ones = torch.ones(2, device=self.kind).to(wanted)
            ones + ones
        except (RuntimeError, TypeError, AssertionError):
            return False
        return ones.dtype == wanted  # torch_npu hands out float32 for float64, with a warning

    def memory(self) -> Mapping[str, int]:
        """The process's peak resident set; Linux counts it in KiB, macOS in bytes."""
        try:
            import resource  # POSIX only
        except ImportError:
            return {}
        unit = 1 if sys.platform == "darwin" else 1024
        return {"peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit}

    def modes(self) -> Mapping[str, object]:
        return {
            "deterministic": torch.are_deterministic_algorithms_enabled(),
            "float32_matmul_precision": torch.get_float32_matmul_precision(),
            "default_dtype": str(torch.get_default_dtype()),
            "flush_denormal": _flushes_subnormals(),
            "num_threads": torch.get_num_threads(),
        }

    def set_deterministic(self, enabled: bool) -> None:
        torch.use_deterministic_algorithms(enabled)

    def describe(self) -> str:
        return f"{self.name}: {platform.machine()}, torch {torch.__version__}"


def _flushes_subnormals() -> bool:
    """Whether this thread flushes subnormals to zero; torch can set the mode but not tell it."""
    return bool((torch.tensor(2.0**-127) * 1.0).item() == 0.0)
