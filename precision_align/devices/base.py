"""The contract of a device: what recording, replay and the case runner may ask of the place where tensors live.

This module imports no torch, so that names and errors are there before a framework is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class Device(Protocol):
    """One place where tensors live.

    ``name``: what the user asked for ("cpu", "npu", "simulated:ascend910b"); ``kind``: the ``torch.device`` type;
    ``emulated``: True where the arithmetic is a model of a device and not the device.
    """

    @property
    def name(self) -> str: ...

    @property
    def kind(self) -> str: ...

    @property
    def emulated(self) -> bool: ...

    def is_available(self) -> bool:
        """Whether tensors can be put there now."""
        ...

    def synchronize(self) -> None:
        """Wait for all queued work."""
        ...

    def manual_seed(self, seed: int) -> None:
        """Seed the generators of the device and of the CPU, which feeds it with initial values."""
        ...

    def get_rng_state(self) -> Any:
        """The device generator's state as a byte tensor on the CPU."""
        ...

    def set_rng_state(self, state: Any) -> None:
        """Set what ``get_rng_state`` returned."""
        ...

    def versions(self) -> Mapping[str, str]:
        """Versions of everything between Python and the metal, as far as they can be asked for."""
        ...

    def supports(self, dtype: str) -> bool:
        """Whether a tensor of that torch dtype name can be made and added to itself there."""
        ...

    def memory(self) -> Mapping[str, int]:
        """Bytes by name: "allocated", "peak", "total"; a figure that the device cannot give is left out."""
        ...

    def modes(self) -> Mapping[str, object]:
        """Switches that change results: arithmetic modes (HF32, TF32, ...) and determinism."""
        ...

    def set_deterministic(self, enabled: bool) -> None:
        """Ask for deterministic kernels; operators without one then raise."""
        ...

    def describe(self) -> str:
        """One line for people. An emulated device says so in it."""
        ...
