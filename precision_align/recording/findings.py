"""Facts met on the way that explain differences: operators run by the CPU, dtypes that were silently lowered."""

from __future__ import annotations

import re
import threading
import warnings
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any, Optional

import torch

from precision_align.devices.npu import falls_back
from precision_align.recording.companions import Companion
from precision_align.recording.hops import Hops
from precision_align.recording.origins import caller_line
from precision_align.recording.tape import Tape

# What torch, torch_npu and torch_xla say: "... will fall back to run on the CPU", "... falling back to CPU".
_FALLBACK = re.compile(r"\bfall(?:s|en|ing)?[ -]?back\b.{0,60}?\bcpu\b", re.IGNORECASE | re.DOTALL)
_OPERATOR = re.compile(r"\b(?:aten::|npu::|torch\.ops\.)?([A-Za-z_]\w*::\w+(?:\.\w+)?|aten::\w+(?:\.\w+)?)")
_RANKS = {torch.float64: 3, torch.float32: 2, torch.bfloat16: 1, torch.float16: 1}
# Operators whose very purpose is another dtype.
_CASTS = ("_to_copy", "to.", "copy_", "view.dtype", "quantize", "_scaled_mm", "type_as", "_foreach_copy_")
_SHOWN = 20


class Findings(Companion):
    """Counts them by operator and user line; they become notes when the session closes."""

    def __init__(self, tape: Tape) -> None:
        self._tape = tape
        self._fallbacks: Counter[tuple[str, str]] = Counter()
        self._demotions: Counter[tuple[str, str, str]] = Counter()
        self.hops = Hops()
        self._lock = threading.Lock()
        self._live = False

    def start(self, cleanup: ExitStack) -> None:
        """Listen to warnings; what is said still reaches whoever listened before."""
        previous = warnings.showwarning

        def show(message: Any, category: Any, filename: str, lineno: int, file: Any = None, line: Any = None) -> None:
            if self._live:
                self._tape.guard("a warning", self._hear, str(message))
            previous(message, category, filename, lineno, file, line)

        self._live = True
        warnings.showwarning = show
        cleanup.callback(self._stop, show, previous)

    def _stop(self, show: Any, previous: Any) -> None:
        self._live = False
        if warnings.showwarning is show:  # else somebody has wrapped ours: it stays, and does nothing
            warnings.showwarning = previous

    def _hear(self, text: str) -> None:
        if not _FALLBACK.search(text):
            return
        named = _OPERATOR.search(text)
        with self._lock:
            self._fallbacks[named.group(0) if named else "an operator", caller_line()] += 1

    def look_at_operator(
        self, func: Any, inputs: Sequence[Any], outputs: Sequence[Any], line: str, wanted: Any = None
    ) -> None:
        """One operator that ran: did it leave its device or lower its dtype? ``wanted``: the dtype it was asked for."""
        name = str(func)
        if any(tensor.device.type == "npu" for _, tensor in inputs) and falls_back(func):
            with self._lock:
                self._fallbacks[func.name(), line] += 1
        after = _floating([tensor for _, tensor in outputs])
        if wanted in _RANKS:
            before = wanted
        elif any(cast in name for cast in _CASTS):
            return
        else:
            before = _floating([tensor for _, tensor in inputs])
        if before is not None and after is not None and _RANKS[after] < _RANKS[before]:
            with self._lock:
                self._demotions[name, f"{before} to {after}".replace("torch.", ""), line] += 1

    def start_step(self) -> None:
        """What was taken from a device is followed within a step."""
        self.hops.start_step()

    def describe(self) -> dict[str, Any]:
        """ "findings": each with "kind", "operator", "change" (of dtype, or the device left), "source", "count"."""
        rows = [("CPU fallback", name, "", line, count) for (name, line), count in self._fallbacks.items()]
        rows += [("dtype lowered", *key[:2], key[2], count) for key, count in self._demotions.items()]
        rows += [("device hop", name, origin, line, count) for (name, origin, line), count in self.hops.found.items()]
        names = ("kind", "operator", "change", "source", "count")
        listed = [dict(zip(names, row)) for row in sorted(rows, key=lambda row: -row[-1])]
        return {"findings": listed} if listed else {}

    def finish(self) -> None:
        """Write the notes, the most frequent first."""
        for (name, line), count in self._fallbacks.most_common(_SHOWN):
            where = f" at {line}" if line else ""
            self._tape.note(f"CPU fallback: {name} ran on the CPU{where} ({count} times)")
        for (name, change, line), count in self._demotions.most_common(_SHOWN):
            self._tape.note(f"dtype lowered: {name} turned {change} at {line} ({count} times)")
        self.hops.tell(self._tape.note, _SHOWN)
        left_out = len(self._fallbacks) + len(self._demotions) - 2 * _SHOWN
        if left_out > 0:
            self._tape.note(f"{left_out} more CPU fallbacks and lowered dtypes were met")


def _floating(tensors: Sequence[torch.Tensor]) -> Optional[torch.dtype]:
    """The narrowest floating dtype among tensors with at least one dimension, None where there is none."""
    found = [tensor.dtype for tensor in tensors if tensor.dtype in _RANKS and tensor.dim()]
    return min(found, key=lambda dtype: _RANKS[dtype], default=None)
