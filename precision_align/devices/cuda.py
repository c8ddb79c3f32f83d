"""NVIDIA GPUs through torch.cuda."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from precision_align.core.errors import Unavailable
from precision_align.devices.accelerators import AcceleratorDevice

_cudnn: Any = torch.backends.cudnn


def _built_for() -> str:
    """The CUDA version this torch was built for, "" for none."""
    return torch.version.cuda or ""


class CudaDevice(AcceleratorDevice):
    """A CUDA device. Raises Unavailable where torch sees none."""

    kind = "cuda"
    switches = ("CUBLAS_WORKSPACE_CONFIG", "NVIDIA_TF32_OVERRIDE", "CUDA_LAUNCH_BLOCKING")

    def __init__(self, name: str = "cuda") -> None:
        super().__init__(name)
        if not torch.cuda.is_available():
            built = _built_for() or "no CUDA"
            raise Unavailable(
                f'Device "{name}": torch {torch.__version__} (built for {built}) sees no CUDA device. '
                "Check the driver with nvidia-smi, or use --device cpu."
            )

    def versions(self) -> Mapping[str, str]:
        found = {"cuda": _built_for(), "cudnn": str(_cudnn.version())}
        return {**super().versions(), **found}

    def modes(self) -> Mapping[str, object]:
        return {
            **super().modes(),
            "matmul.allow_tf32": torch.backends.cuda.matmul.allow_tf32,
            "matmul.allow_fp16_reduced_precision_reduction": (
                torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction
            ),
            "matmul.allow_bf16_reduced_precision_reduction": (
                torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction
            ),
            "cudnn.allow_tf32": torch.backends.cudnn.allow_tf32,
            "cudnn.deterministic": torch.backends.cudnn.deterministic,
            "cudnn.benchmark": torch.backends.cudnn.benchmark,
        }
