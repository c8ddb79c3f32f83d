"""What of Ascend's software is installed on this host: toolkit, driver, firmware. Imports no torch."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Optional

# Where the installers put everything; a container gets driver and firmware from its host.
_ROOT = "/usr/local/Ascend"
_INSTALL_INFO = "/etc/ascend_install.info"
_CANN_HOMES = ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME")
_CANN_FILES = ("version.cfg", "*/ascend_toolkit_install.info", "compiler/version.info", "runtime/version.info")
TOOL_SECONDS = 15  # npu-smi takes up to five on a loaded host


def find_cann_version(environment: Optional[Mapping[str, str]] = None) -> str:
    """The version of the CANN toolkit that the environment points at, else of the usual place; "" without one."""
    variables = os.environ if environment is None else environment
    homes = [Path(variables[name]) for name in _CANN_HOMES if variables.get(name)]
    homes = homes or [Path(_ROOT) / "ascend-toolkit" / "latest"]
    files = [path for home in homes for pattern in _CANN_FILES for path in sorted(home.glob(pattern))]
    return next(filter(None, map(_read_version, files)), variables.get("CANN_VERSION", ""))


def find_driver_version() -> str:
    """The driver's version from its own file, else from npu-smi; "" without one."""
    return _find_installed("driver") or _ask_smi()


def find_firmware_version() -> str:
    """The firmware's version from its installer's file, "" without one."""
    return _find_installed("firmware")


def find_ascend_versions() -> Mapping[str, str]:
    """ "cann", "driver" and "firmware", those that are known."""
    found = {"cann": find_cann_version(), "driver": find_driver_version(), "firmware": find_firmware_version()}
    return {name: version for name, version in found.items() if version}


def _find_installed(name: str) -> str:
    return next(filter(None, (_read_version(root / name / "version.info") for root in _list_roots())), "")


def _list_roots() -> Iterator[Path]:
    """Folders that may hold driver and firmware: as the installer was told, then the usual one."""
    try:
        lines = Path(_INSTALL_INFO).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    for line in lines:
        name, _, value = line.partition("=")
        if name.strip() in ("Driver_Install_Path_Param", "Firmware_Install_Path_Param") and value.strip():
            yield Path(value.strip())
    yield Path(_ROOT)


def _read_version(path: Path) -> str:
    """The value of the first "version = ..." line of an information file, "" where it has none or cannot be read."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    found = re.search(r"^\s*[\w.]*version\s*[=:]\s*\[?([^\]\s]+)", text, re.IGNORECASE | re.MULTILINE)
    return found.group(1) if found else ""


@lru_cache(maxsize=1)
def _ask_smi() -> str:
    found = re.search(r"npu-smi\s+v?([\w.]+)", run_tool("npu-smi", "info"))
    return found.group(1) if found else ""


def run_tool(*command: str) -> str:
    """What a vendor's tool prints, "" where it is not there, fails or hangs."""
    try:
        done = subprocess.run(command, capture_output=True, timeout=TOOL_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode("utf-8", "replace") if done.returncode == 0 else ""
