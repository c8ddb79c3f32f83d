"""The stub CANN without torch_npu: it compiles, loads, keeps its queue, and knows the private formats."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from precision_align.core.errors import Unavailable
from precision_align.devices.stub_cann import building
from precision_align.devices.stub_cann.operators import FRACTAL_NZ, NC1HWC0, from_private, to_private


@pytest.fixture(scope="module")
def stub(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The compiled libraries."""
    if not any(map(shutil.which, ("cc", "gcc", "clang"))):
        pytest.skip("no C compiler")
    return building.build_stub(tmp_path_factory.mktemp("stub"))


USE = """
import ctypes, sys
library = ctypes.CDLL(sys.argv[1] + "/libascendcl.so")
pointer = ctypes.c_void_p()
assert library.aclrtMalloc(ctypes.byref(pointer), ctypes.c_size_t(64), 0) == 0
assert pointer.value % 512 == 0
source = ctypes.create_string_buffer(b"x" * 64, 64)
ctypes.memset(pointer, 0, 64)
library.stub_hold_copies(1)
assert library.aclrtMemcpyAsync(pointer, ctypes.c_size_t(64), source, ctypes.c_size_t(64), 1, None) == 0
status = ctypes.c_int(7)
library.aclrtStreamQuery(None, ctypes.byref(status))
assert status.value == 1, "the copy cannot be done yet"
assert ctypes.string_at(pointer, 64) == bytes(64)
library.stub_hold_copies(0)
library.aclrtSynchronizeDevice()
assert ctypes.string_at(pointer, 64) == b"x" * 64
library.aclrtStreamQuery(None, ctypes.byref(status))
assert status.value == 0
library.aclrtGetSocName.restype = ctypes.c_char_p
free, total = ctypes.c_size_t(), ctypes.c_size_t()
library.aclrtGetMemInfo(0, ctypes.byref(free), ctypes.byref(total))
print(library.aclrtGetSocName().decode(), total.value - free.value)
assert library.aclopCompileAndExecute(b"Add", 0, None, None, 0, None, None, None, 0, 0, None, None) != 0
"""


def test_copies_are_queued_and_memory_is_counted(stub: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", USE, str(stub)],
        capture_output=True,
        text=True,
        env={"STUB_CANN_SOC": "Ascend950PR"},
        check=False,
    )
    assert done.stdout.split() == ["Ascend950PR", "64"], done.stderr


def test_every_library_that_torch_npu_asks_for_is_there(stub: Path) -> None:
    assert {path.name for path in stub.iterdir()} == set(building.LIBRARIES)
    for name in building.LIBRARIES:
        assert ctypes.CDLL(str(stub / name)).aclInit(None) == 0


def test_what_is_missing_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Unavailable, match="Build it with build_stub"):
        building.load_stub(tmp_path)
    broken = tmp_path / "broken.c"
    broken.write_text("int main(", encoding="utf-8")
    monkeypatch.setattr(building, "SOURCES", (broken,))
    if any(map(shutil.which, ("cc", "gcc", "clang"))):
        with pytest.raises(Unavailable, match="does not compile"):
            building.build_stub(tmp_path / "out")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(Unavailable, match="needs a C compiler"):
        building.build_stub(tmp_path / "out")


@settings(max_examples=30, deadline=None)
@given(shape=st.lists(st.integers(1, 40), min_size=2, max_size=4))
def test_plain_values_come_back_from_private_formats(shape: list[int]) -> None:
    values = torch.arange(torch.Size(shape).numel(), dtype=torch.float32).reshape(shape)
    forms = [FRACTAL_NZ, NC1HWC0] if len(shape) == 4 else [FRACTAL_NZ]
    for form in forms:
        words = to_private(values, form)
        assert words.numel() % 16 == 0
        assert torch.equal(from_private(words, tuple(shape), form), values)


def test_blocks_are_laid_out_as_the_matrix_unit_reads_them() -> None:
    values = torch.arange(32.0 * 48).reshape(32, 48)
    blocks = to_private(values, FRACTAL_NZ).reshape(3, 2, 16, 16)  # columns of blocks come first
    assert torch.equal(blocks[2, 1], values[16:, 32:])
    pictures = torch.arange(2.0 * 20 * 3 * 5).reshape(2, 20, 3, 5)
    groups = to_private(pictures, NC1HWC0).reshape(2, 2, 3, 5, 16)
    assert torch.equal(groups[1, 1, 2, 4, :4], pictures[1, 16:, 2, 4])
    assert not groups[1, 1, 2, 4, 4:].any()
