"""Capture under any launcher: PRECISION_ALIGN=capture.toml in the environment. Imports no torch.

Every Python process that inherits the variable comes here when it starts (by the file ``precision_align.pth`` in
site-packages, or by ``import precision_align.auto``). It waits until the program imports torch; a program that never
does is left alone. Which processes may record is told from a second variable, which each process leaves for those that
it starts: one that was given another place by a launcher (a rank of its own) is a program in its own right; one in the
same place is a child of the program: silent where that records already, and before it only listened to if it trains.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Callable, Optional

from precision_align.recording.placement import describe_placement

VARIABLE = "PRECISION_ALIGN"
ABOVE = "PRECISION_ALIGN_ABOVE"  # "STATE|PLACE" of the process above

WAITING = "waiting"
RECORDING = "recording"
FAILED = "failed"  # it was said once: the processes below keep silent


def leave_word(state: str) -> None:
    """Tell the processes that this one will start what it does."""
    os.environ[ABOVE] = f"{state}|{describe_placement()}"


def arm(start: Callable[[str, bool], None]) -> None:
    """Call ``start(configuration's absolute path, is this a child)`` once torch is there; at once where it is.

    Does nothing without the variable, below a process that records in the same place, and below one that has failed.
    """
    path = os.environ.get(VARIABLE)
    if not path:
        return
    os.environ[VARIABLE] = path = os.path.abspath(path)  # noqa: PTH100 (pathlib costs start-up time)
    state, _, place = os.environ.get(ABOVE, "").partition("|")
    below = bool(state) and place == describe_placement()
    if state == FAILED or (below and state == RECORDING):
        return
    leave_word(WAITING)
    if "torch" in sys.modules:
        start(path, below)
    else:
        sys.meta_path.insert(0, _TorchFinder(lambda: start(path, below)))


def disarm() -> None:
    """This program and those that it starts are not to be captured: it is the command line of this package."""
    os.environ.pop(VARIABLE, None)
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _TorchFinder)]


class _TorchFinder(MetaPathFinder):
    """Finds torch as the others do, once, and calls back when it has been imported."""

    def __init__(self, then: Callable[[], None]) -> None:
        self._then = then

    def find_spec(
        self, fullname: str, path: Optional[Sequence[str]], target: Optional[ModuleType] = None
    ) -> Optional[ModuleSpec]:
        """The spec of torch, None for all else."""
        if fullname != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            self._follow(spec.loader)
        return spec

    def _follow(self, loader: Any) -> None:
        original = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            del loader.exec_module  # torch's own loader stays as it was
            original(module)
            self._then()

        loader.exec_module = exec_module
