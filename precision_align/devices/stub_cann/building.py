"""Compile the stub CANN and load it, so that ``import torch_npu`` finds it instead of the real one."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from pathlib import Path

from precision_align.core.errors import Unavailable

FOLDER = Path(__file__).parent
SOURCES = tuple(FOLDER / name for name in ("runtime.c", "operators.c", "accepted.c"))
# What libtorch_npu.so and its libraries are linked against. All symbols are in the first; the others have to exist.
LIBRARIES = (
    "libascendcl.so",
    "libhccl.so",
    "libacl_op_compiler.so",
    "libge_runner.so",
    "libgraph.so",
    "libacl_tdt_channel.so",
)
_COMPILERS = ("cc", "gcc", "clang")
# Without link-time sharing of the empty libraries' dependency, their symbols would not resolve to the first one's.
_FLAGS = ("-std=gnu99", "-O1", "-fPIC", "-shared", "-Wl,--no-as-needed")
_SECONDS = 60  # it takes one; a compiler that hangs must not hang a test run


def build_stub(folder: Path) -> Path:
    """Compile the stub libraries into a folder (made if need be; what is there is overwritten). Returns the folder.

    Raises Unavailable without a C compiler or where it fails.
    """
    compiler = next(filter(None, map(shutil.which, _COMPILERS)), None)
    if compiler is None:
        raise Unavailable(f"The stub CANN needs a C compiler ({', '.join(_COMPILERS)}); none is on PATH.")
    folder.mkdir(parents=True, exist_ok=True)
    first, *others = LIBRARIES
    _compile(compiler, folder / first, [*map(str, SOURCES), "-lpthread"])
    for name in others:
        _compile(compiler, folder / name, ["-xc", os.devnull, f"-L{folder}", "-lascendcl"])
    return folder


def _compile(compiler: str, target: Path, inputs: list[str]) -> None:
    command = [compiler, *_FLAGS, f"-Wl,-soname,{target.name}", "-o", str(target), *inputs]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=_SECONDS, check=False)
    if done.returncode:
        raise Unavailable(f"The stub CANN does not compile: {' '.join(command)}\n{done.stderr.strip()}")


def load_stub(folder: Path) -> ctypes.CDLL:
    """Load the libraries of ``build_stub`` into this process; call it before torch_npu is imported.

    The loader takes a library that is already there by its name, so no LD_LIBRARY_PATH is needed. Returns the one with
    all symbols. Raises Unavailable where they are not there.
    """
    try:
        loaded = [ctypes.CDLL(str(folder / name), mode=ctypes.RTLD_GLOBAL) for name in LIBRARIES]
    except OSError as error:
        raise Unavailable(f"The stub CANN in {folder} does not load: {error}. Build it with build_stub.") from error
    return loaded[0]
