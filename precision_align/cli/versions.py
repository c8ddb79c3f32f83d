"""Versions of everything between Python and the metal, found without importing torch or waking a device."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from importlib import metadata
from pathlib import Path

from precision_align import __version__

PACKAGES = ("torch", "torch_npu", "numpy", "h5py", "jinja2")
TOOL_SECONDS = 15  # npu-smi takes up to five on a loaded host
_CANN_HOMES = ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME")
_CANN_DEFAULT = Path("/usr/local/Ascend/ascend-toolkit/latest")
_CANN_FILES = ("version.cfg", "*/ascend_toolkit_install.info", "compiler/version.info", "runtime/version.info")
_DRIVER_FILES = (Path("/usr/local/Ascend/driver/version.info"),)


def find_versions() -> dict[str, str]:
    """Name -> version; "" where it is not installed."""
    versions = {"precision-align": __version__, "python": platform.python_version()}
    versions["platform"] = platform.platform()
    versions.update({name: find_package(name) for name in PACKAGES})
    versions["cann"] = find_cann()
    versions["ascend driver"] = find_ascend_driver()
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


def find_cann(environment: dict[str, str] | None = None) -> str:
    """The version of the CANN toolkit that the environment points at, else of the default place."""
    variables = dict(os.environ) if environment is None else environment
    homes = [Path(variables[name]) for name in _CANN_HOMES if variables.get(name)] or [_CANN_DEFAULT]
    files = [path for home in homes for pattern in _CANN_FILES for path in sorted(home.glob(pattern))]
    return next(filter(None, map(read_version, files)), "")


def read_version(path: Path) -> str:
    """The value of the first "version = ..." line of an information file, "" where it has none or cannot be read."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    found = re.search(r"^\s*[\w.]*version\s*[=:]\s*\[?([^\]\s]+)", text, re.IGNORECASE | re.MULTILINE)
    return found.group(1) if found else ""


def find_ascend_driver() -> str:
    """The Ascend driver's version from its own file, else from npu-smi."""
    known = next(filter(None, map(read_version, _DRIVER_FILES)), "")
    if known:
        return known
    found = re.search(r"npu-smi\s+v?([\w.]+)", run_tool("npu-smi", "info"))
    return found.group(1) if found else ""


def find_nvidia_driver() -> str:
    """The NVIDIA driver's version from nvidia-smi."""
    lines = run_tool("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader").split()
    return lines[0] if lines else ""


def run_tool(*command: str) -> str:
    """What a vendor's tool prints, "" where it is not there, fails or hangs."""
    try:
        done = subprocess.run(command, capture_output=True, timeout=TOOL_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode("utf-8", "replace") if done.returncode == 0 else ""
