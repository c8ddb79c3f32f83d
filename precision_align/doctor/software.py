"""The packages: what of this tool works here."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import redirect_stdout
from importlib import import_module

from precision_align.doctor.checks import ABSENT, BAD, GOOD, Check, first_line

OLDEST_TORCH = (2, 1)


def check_storage(versions: Mapping[str, str]) -> Check:
    """NumPy and h5py."""
    absent = [name for name in ("numpy", "h5py") if not versions.get(name)]
    if absent:
        return Check("dumps", BAD, f"{' and '.join(absent)} missing", f"pip install {' '.join(absent)}")
    return Check("dumps", GOOD, f"can be read and written (numpy {versions['numpy']}, h5py {versions['h5py']})")


def check_pages(versions: Mapping[str, str]) -> Check:
    """Jinja."""
    if versions.get("jinja2"):
        return Check("report.html", GOOD, f"can be written (jinja2 {versions['jinja2']})")
    return Check("report.html", ABSENT, "jinja2 is not installed", "pip install 'precision-align[analysis]'")


def check_torch(version: str) -> Check:
    """torch is there, loads, and is new enough."""
    if not version:
        text = "not installed: dumps can be shown and compared, not recorded or replayed"
        return Check("torch", ABSENT, text, "pip install 'precision-align[torch]'")
    try:
        with redirect_stdout(sys.stderr):  # torch_npu, which torch loads by itself, greets on stdout
            import_module("torch")
    except Exception as error:  # a torch_npu without CANN breaks `import torch` with whatever its loader raises
        advice = "source CANN's set_env.sh, or set TORCH_DEVICE_BACKEND_AUTOLOAD=0 to leave torch_npu out"
        return Check("torch", BAD, f"{version} does not load: {first_line(error)}", advice)
    numbers = tuple(int(part) for part in version.split("+")[0].split(".")[:2] if part.isdigit())
    if numbers < OLDEST_TORCH:
        return Check("torch", BAD, f"{version} is too old", "install torch 2.1 or later")
    return Check("torch", GOOD, version)
