"""What each step and each module costs, so that two runs can be held against each other in more than numbers.

Series points of every step, recorded or not: ``step_time`` (seconds from the step's start to its end by the host's
clock; nothing waits for a device because of it), ``tokens`` (elements of the first integer input with at least two
dimensions, summed over the step's batches) and ``peak_memory`` (bytes: the device allocator's highest mark since the
process began, on the CPU that of the resident set). What a run logs itself under these names counts instead.
"""

from __future__ import annotations

import contextlib
import mmap
import time
from pathlib import Path
from typing import Any, Callable, Optional

import torch

from precision_align.core.trees import flatten
from precision_align.devices.cpu import CpuDevice
from precision_align.devices.selection import open_device
from precision_align.recording.companions import Companion
from precision_align.recording.hooks import Hook, first_names
from precision_align.recording.series import Series
from precision_align.recording.tape import Clock

Meter = Callable[[], "tuple[int, int]"]


class Costs(Companion):
    """Measures them. ``modules``: scope -> bytes at the ``peak`` of its calls, ``kept`` when they end, ``calls``.

    The allocator (for host memory the resident set, on Linux) is asked at each module's entry and exit. A peak inside a
    call is known exactly only where it is the highest of the run so far; else the higher of both ends is taken, a lower
    bound. On the CPU memory that the process holds already shows no growth. Steps in which nothing is recorded count;
    where all are recorded, so does what recording holds, and ``recorded`` says so.
    """

    def __init__(self, model: torch.nn.Module, series: Series, clock: Clock) -> None:
        self._model, self._series, self._clock = model, series, clock
        self._measure = _find_meter(model)
        self._begun: Optional[float] = None
        self._tokens = 0
        self._open: list[tuple[str, int, int]] = []
        self._handles: list[Any] = []
        self._hooked: set[str] = set()
        self._modules: dict[bool, dict[str, dict[str, int]]] = {False: {}, True: {}}

    def start(self, cleanup: contextlib.ExitStack) -> None:
        """The hooks go with the session."""
        cleanup.callback(self._detach)

    def start_step(self) -> None:
        """Time runs from here; modules that came meanwhile are watched from here on."""
        self._attach()
        self._open.clear()
        self._tokens, self._begun = 0, time.perf_counter()

    def start_batch(self, args: Any, kwargs: Any) -> None:
        """Count the batch's tokens."""
        leaves = flatten([list(args), kwargs], lambda value: isinstance(value, torch.Tensor))[1]
        whole = (tensor for _, tensor in leaves if tensor.ndim > 1 and _is_whole(tensor))
        self._tokens += next((tensor.numel() for tensor in whole), 0)

    def finish_step(self) -> None:
        """Three points at most; a figure that the device cannot give is left out."""
        if self._begun is None:
            return
        points = {"step_time": time.perf_counter() - self._begun, "tokens": self._tokens}
        for name, value in {**points, "peak_memory": self._measure()[1]}.items():
            if value:
                self._series.add(name, self._clock.batch, float(value), given=False)
        self._begun = None

    def describe(self) -> dict[str, Any]:
        """ "modules" and "recorded" as JSON; {} where the device counts nothing."""
        recorded = not self._modules[False]
        modules = self._modules[recorded]
        return {"memory": {"recorded": recorded, "modules": modules}} if modules else {}

    def _attach(self) -> None:
        modules, _ = first_names(self._model)
        for scope, module in modules.items():
            if scope in self._hooked or isinstance(module, torch.jit.ScriptModule):
                continue
            self._hooked.add(scope)
            self._handles += [
                module.register_forward_pre_hook(Hook(module, scope, self._enter), prepend=True),
                module.register_forward_hook(Hook(module, scope, self._leave), always_call=True),
            ]

    def _detach(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _enter(self, module: torch.nn.Module, scope: str, *arguments: Any) -> None:
        self._open.append((scope, *self._measure()))

    def _leave(self, module: torch.nn.Module, scope: str, *arguments: Any) -> None:
        if not self._open or self._open[-1][0] != scope:  # a call on another thread, or one that began before us
            return
        _, before, mark = self._open.pop()
        now, highest = self._measure()
        if not highest:
            return
        peak = highest if highest > mark else max(before, now)
        known = self._modules[self._clock.recording].setdefault(scope, {"peak": 0, "kept": 0, "calls": 0})
        known["peak"], known["kept"] = max(known["peak"], peak), max(known["kept"], now - before)
        known["calls"] += 1


def _is_whole(tensor: torch.Tensor) -> bool:
    return not (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype is torch.bool or tensor.is_quantized)


def _find_meter(model: torch.nn.Module) -> Meter:
    """Reads (bytes in use, highest so far) where the model's parameters are; (0, 0) where nobody counts them."""
    kind = next((parameter.device.type for parameter in model.parameters()), "cpu")
    runtime = getattr(torch, kind, None)
    if kind not in ("cuda", "npu") or getattr(runtime, "is_simulated", False):
        return _measure_host
    device = open_device(kind)

    def measure() -> tuple[int, int]:
        found = device.memory()
        return found["allocated"], found["peak"]

    return measure


def _measure_host() -> tuple[int, int]:
    peak = CpuDevice().memory().get("peak", 0)
    try:
        pages = int(Path("/proc/self/statm").read_text("ascii").split()[1])
    except (OSError, ValueError, IndexError):
        return 0, 0
    return pages * mmap.PAGESIZE, peak
