"""The compiled kernels: their C source turned into a library once a machine, kept in the user's cache folder.

The file's name has a hash of the source, the flags, the compiler and the CPU in it, so a home directory that several
kinds of machines share holds one for each. Nothing here raises: where there is no compiler, no home or no room, there
is no library, and a slower kernel does the work.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import stat
from contextlib import suppress
from pathlib import Path

SOURCE = Path(__file__).with_name("difference.c")

_COMPILERS = ("cc", "gcc", "clang")
# -fno-trapping-math: without it GCC keeps the comparisons of floats apart, at a third of the speed; it lets no result
# change. Plain -O3 as last choice for compilers that do not know the machine they run on. The width: GCC's tuning for
# some CPUs with AVX-512 splits loops in halves, and a vector of 512 bits that is made of two goes through memory.
_FLAGS = ("-std=gnu99", "-O3", "-fPIC", "-shared", "-fno-trapping-math", "-fno-math-errno", "-fopenmp-simd")
_TRIES = (("-march=native", "-mprefer-vector-width=512"), ("-march=native",), ("-mcpu=native",), ())
_SECONDS = 60  # it takes 1.3 s; a compiler that hangs must not hang us


def load_library(source: Path = SOURCE) -> ctypes.CDLL | None:
    """The library of one C source, built if need be, or None."""
    path = build_library(source)
    try:
        return None if path is None else ctypes.CDLL(str(path))
    except OSError:
        return None


def build_library(source: Path, flags: tuple[str, ...] = (), mark: str = "") -> Path | None:
    """The file of the library of one C source and the headers beside it, built if need be, or None.

    ``flags``: more of them; ``mark``: what else it depends on.
    """
    compiler = next(filter(None, map(shutil.which, _COMPILERS)), None)
    folder = cache_folder()
    if compiler is None or folder is None:
        return None
    with suppress(OSError):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = folder / f"{source.stem}-{_identify(compiler, source, (*flags, mark))}.so"
        if not path.exists() and not _build(compiler, path, source, flags):
            return None
        return path if _is_ours(path) else None
    return None


def cache_folder() -> Path | None:
    """Where libraries are kept: in XDG_CACHE_HOME, or ~/.cache; None for a user without a home."""
    given = os.environ.get("XDG_CACHE_HOME", "")
    if Path(given).is_absolute():
        return Path(given) / "precision-align"
    with suppress(RuntimeError, KeyError):
        return Path.home() / ".cache" / "precision-align"
    return None


def _is_ours(path: Path) -> bool:
    """Whether nobody else could have written the file: code is loaded from it."""
    found = path.stat()
    return found.st_uid == os.getuid() and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _identify(compiler: str, source: Path, marks: tuple[str, ...]) -> str:
    binary = Path(compiler).resolve()
    found = binary.stat()
    parts = [str(binary), str(found.st_size), str(found.st_mtime_ns), _describe_cpu(), *_FLAGS, *marks]
    texts = [path.read_bytes() for path in (source, *sorted(source.parent.glob("*.h")))]
    return hashlib.sha256(b"\n".join(["\n".join(parts).encode(), *texts])).hexdigest()[:24]


def _describe_cpu() -> str:
    """What decides which instructions there are."""
    wanted = ("vendor_id", "cpu family", "model", "flags", "Features", "CPU part")
    try:
        with Path("/proc/cpuinfo").open(encoding="utf-8", errors="replace") as file:
            core = "".join(iter(file.readline, "\n"))  # the first of them
    except OSError:
        return platform.machine() + platform.processor()
    lines = [line.strip() for line in core.split("\n") if line.split("\t")[0].split(":")[0].strip() in wanted]
    return "\n".join([platform.machine(), *lines])


def _build(compiler: str, path: Path, source: Path, more: tuple[str, ...]) -> bool:
    """Compile to a name of its own and rename, so that no other process ever loads half a library."""
    import subprocess  # both needed once a machine
    import tempfile

    failed = path.with_suffix(".failed")
    if failed.exists():  # it would fail again; a new compiler or version has another name
        return False
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        target = Path(folder) / "library.so"
        message = ""
        for flags in _TRIES:
            command = [compiler, *_FLAGS, *more, *flags, str(source), "-o", str(target)]
            try:
                done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=_SECONDS)
            except subprocess.SubprocessError:
                return False
            if done.returncode == 0:
                target.chmod(0o700)
                target.replace(path)
                return True
            message = done.stderr
        failed.write_text(message, encoding="utf-8", errors="replace")
    return False
