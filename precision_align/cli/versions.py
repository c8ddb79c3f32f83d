"""Versions of everything between Python and the metal, found without importing torch or waking a device."""

from __future__ import annotations

import platform
from importlib import metadata

from precision_align import __version__
from precision_align.devices.ascend import find_cann_version, find_driver_version, find_firmware_version, run_tool

PACKAGES = ("torch", "torch_npu", "numpy", "h5py", "jinja2")


def find_versions() -> dict[str, str]:
    """Name -> version; "" where it is not installed."""
    versions = {"precision-align": __version__, "python": platform.python_version()}
    versions["platform"] = platform.platform()
    versions.update({name: find_package(name) for name in PACKAGES})
    versions["cann"] = find_cann_version()
    versions["ascend driver"] = find_driver_version()
    versions["ascend firmware"] = find_firmware_version()
    versions["nvidia driver"] = find_nvidia_driver()
    return versions


def find_package(name: str) -> str:
    """The installed version of a distribution, "" where there is none."""
    for spelling in (name, name.replace("_", "-")):
        try:
            return metadata.version(spelling)
        except metadata.PackageNotFoundError:
            continue
    return ""


def find_nvidia_driver() -> str:
    """The NVIDIA driver's version from nvidia-smi."""
    lines = run_tool("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader").split()
    return lines[0] if lines else ""
