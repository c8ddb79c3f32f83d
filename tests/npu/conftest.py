"""The suite of the real torch_npu: over the stub CANN in a process of its own (run.py), or on Ascend (-m ascend).

In any other run nothing here is collected: a process can hold torch_npu or the simulated device, not both.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

# The folder of the stub libraries; set by run.py, together with the folder of the wheel on PYTHONPATH.
STUB = os.environ.get("PRECISION_ALIGN_STUB_CANN", "")
HERE = Path(__file__).parent

sys.path.insert(0, str(HERE))


def load_torch_npu() -> str:
    """Import torch_npu, over the stub if one is named. Returns why it cannot be, "" where it can."""
    from precision_align.core.errors import Unavailable
    from precision_align.devices.selection import open_device

    try:
        if STUB:
            from precision_align.devices.stub_cann.building import load_stub

            library = load_stub(Path(STUB))
            import torch_npu  # noqa: F401

            from precision_align.devices.stub_cann.kernels import install_kernels
            from precision_align.devices.stub_cann.operators import serve_operators

            install_kernels()
            serve_operators(library)
        open_device("npu")
    except Unavailable as error:
        if STUB:
            raise
        return str(error)
    return ""


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Only for run.py and for those who ask for the hardware."""
    wanted = STUB or "ascend" in str(config.getoption("markexpr", ""))
    return None if wanted else HERE in [collection_path, *collection_path.parents] or None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything here is a test of the hardware, save what plants something into the stub."""
    mine = [item for item in items if HERE in item.path.parents]
    reason = load_torch_npu() if mine else ""
    for item in mine:
        if item.get_closest_marker("stub") is None:
            item.add_marker(pytest.mark.ascend)
        elif not STUB:
            item.add_marker(pytest.mark.skip(reason="plants something into the stub CANN, which is not here"))
        if reason:
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Two runs are compared bit for bit; the number of threads may change the order of sums."""
    from precision_align.testing.devices import one_thread as alone

    with alone():
        yield
