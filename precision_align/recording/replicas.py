"""DataParallel's replicas: copies of a module that run at the same time, each on a thread and a device of its own.

Which thread comes first is chance; the device is not. A replica's calls are numbered by its device's place among the
wrapper's ``device_ids``, so that two runs give one call one number.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Optional

import torch


class Replica(NamedTuple):
    """Which of how many."""

    position: int
    total: int


def is_replica(module: torch.nn.Module) -> bool:
    """Whether DataParallel has made this module for one call."""
    return bool(getattr(module, "_is_replica", False))


def find_replica(holder: Optional[torch.nn.Module], tensors: Iterable[torch.Tensor]) -> Optional[Replica]:
    """Which replica gets these tensors from a DataParallel module; None where that cannot be told."""
    devices = _list_devices(holder)
    for tensor in tensors:
        if tensor.device.index in devices:
            return Replica(devices.index(tensor.device.index), len(devices))
    return None


def _list_devices(holder: Optional[torch.nn.Module]) -> Sequence[int]:
    listed = getattr(holder, "device_ids", None)
    if not isinstance(listed, (list, tuple)):
        return []
    indexes = [getattr(device, "index", device) for device in listed]
    return [index for index in indexes if isinstance(index, int)]


def former_parameters(module: torch.nn.Module) -> Mapping[str, Any]:
    """A replica's parameters: no leaves, but copies that lead back to the original ones."""
    found = module.__dict__.get("_former_parameters")
    return found if isinstance(found, Mapping) else {}
