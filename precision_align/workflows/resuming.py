"""Going on with a comparison that was interrupted: its journal lies beside its first output."""

from __future__ import annotations

import json
import os
import sys
import sysconfig
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from precision_align import __version__
from precision_align.comparison.journals import Journal
from precision_align.numerics.kernels import kernel_name
from precision_align.storage.hashing import digest_bytes
from precision_align.storage.remote import find_place, is_remote, list_stamps

SUFFIX = ".partial"

Stamp = tuple[str, int, int]  # a file, its size and its time of change in nanoseconds


def open_journal(
    output: str | os.PathLike[str],
    reference: Any,
    candidate: Any,
    *,
    rules: Any = None,
    naming: Any = None,
    layout: Any = None,
    rename: Any = None,
) -> Journal:
    """The journal of ``output``, with what an interrupted comparison of the same has left in it.

    The same: all files of both sides by name, size and time of change, the rule, naming, layout and rename files, the
    user's Python code that is loaded now, the versions of this package, of torch and of NumPy, and the difference
    kernel. ``reference`` and ``candidate``: paths (``reference`` may be None).
    """
    said = [str(item) for item in (rules, naming, layout, rename) if item is not None]
    identity = {
        "versions": [__version__, sys.version, *(find_version(name) for name in ("torch", "numpy"))],
        "kernel": kernel_name(),
        "sides": [None if side is None else list(_stamp_side(side)) for side in (reference, candidate)],
        "given": [said, list(_stamp(map(Path, said)))],
        "code": list(_stamp(_list_own_code())),
    }
    text = json.dumps(identity, sort_keys=True)
    return Journal(Path(f"{os.fspath(output)}{SUFFIX}"), digest_bytes(text.encode("utf-8", "surrogatepass")))


def find_version(package: str) -> str:
    """Of an installed package, "" where it is not there."""
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _stamp_side(side: str | os.PathLike[str]) -> Iterable[Any]:
    place = find_place(side)
    return list_stamps(place) if is_remote(place) else _stamp_tree(place)


def _stamp_tree(place: Path) -> Iterable[Stamp]:
    """Of a file, or of all files in a folder but journals."""
    if not place.is_dir():
        return _stamp([place.absolute()])
    return _stamp(sorted(path for path in place.absolute().rglob("*") if path.suffix != SUFFIX and path.is_file()))


def _stamp(paths: Iterable[Path]) -> Iterable[Stamp]:
    for path in paths:
        try:
            found = path.stat()
        except OSError:
            yield str(path), -1, -1
        else:
            yield str(path), found.st_size, found.st_mtime_ns


def _list_own_code() -> list[Path]:
    """Files of loaded modules that belong to no installation: what a reference's code is made of."""
    installed = [*map(Path, sysconfig.get_paths().values()), Path(__file__).parent.parent]
    roots = tuple(f"{place.resolve()}{os.sep}" for place in installed)
    files = [str(getattr(module, "__file__", None) or "") for module in list(sys.modules.values())]
    real = {str(Path(file).resolve()) for file in files if file}
    return sorted(Path(file) for file in real if not file.startswith(roots))
