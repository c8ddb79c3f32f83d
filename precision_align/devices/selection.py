"""From a device's name to the device."""

from __future__ import annotations

from importlib import import_module
from typing import cast

from precision_align.core.errors import Unavailable, UsageError
from precision_align.devices.base import Device

DEVICE_NAMES = ("cpu", "cuda", "npu", "simulated")

_CLASSES = {
    "cpu": ("precision_align.devices.cpu", "CpuDevice"),
    "cuda": ("precision_align.devices.cuda", "CudaDevice"),
    "npu": ("precision_align.devices.npu", "NpuDevice"),
    "simulated": ("precision_align.devices.simulated", "SimulatedDevice"),
}


def open_device(name: str) -> Device:
    """The device of that name: "cpu", "cuda", "npu" or "simulated[:PROFILE]", PROFILE a built-in name or a TOML path.

    Raises UsageError for an unknown name and Unavailable, with the reason, where the device is not there. Opening the
    simulated device installs it in this process, for good.
    """
    kind, _, profile = name.partition(":")
    if kind not in _CLASSES or (profile and kind != "simulated"):
        raise UsageError(_explain_unknown(name, kind, profile))
    module, class_name = _CLASSES[kind]
    try:
        factory = getattr(import_module(module), class_name)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise Unavailable(f'Device "{name}": torch is not installed. pip install "precision-align[torch]".') from error
    return cast(Device, factory(profile) if profile else factory())


def _explain_unknown(name: str, kind: str, profile: str) -> str:
    if kind in _CLASSES:
        return f'Device "{name}": only "simulated" takes a profile. Write "{kind}" without ":{profile}".'
    return f'Unknown device "{name}". Known: cpu, cuda, npu, simulated, simulated:PROFILE (for example simulated:none).'
