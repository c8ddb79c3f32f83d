"""Values that leave the device inside a module's call and are computed on by the CPU: a hop in the user's code."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch

from precision_align.recording.storages import storage_of

_COPIES = ("_to_copy", "copy_")
Leaves = Sequence[tuple[str, torch.Tensor]]


class Hops:
    """Follows what was copied from a device to the CPU; ``found``: (operator, device, user line) -> times."""

    def __init__(self) -> None:
        self._taken: dict[int, tuple[Any, str]] = {}  # what lies on the CPU -> the device it comes from
        self.found: Counter[tuple[str, str, str]] = Counter()

    def start_step(self) -> None:
        """Storages of the last step are forgotten."""
        self._taken.clear()

    def look(self, name: str, computes: bool, inputs: Leaves, outputs: Leaves, line: str) -> None:
        """An operator that ran inside a module's call or a backward pass; views (not ``computes``) are no work."""
        origin = self._find_origin([tensor for _, tensor in inputs])
        on_cpu = [tensor for _, tensor in outputs if tensor.device.type == "cpu" and tensor.dim()]
        if not origin or not on_cpu:
            return
        if computes and not any(copy in name for copy in _COPIES):
            self.found[name, origin, line] += 1
        for tensor in on_cpu:
            key = storage_of(tensor)
            if key is not None:
                self._taken[key.cdata] = (key, origin)

    def _find_origin(self, tensors: Sequence[torch.Tensor]) -> str:
        for tensor in tensors:
            if tensor.device.type not in ("cpu", "meta"):
                return str(tensor.device)
            key = storage_of(tensor)
            known = None if key is None else self._taken.get(key.cdata)
            if known is not None and not known[0].expired():
                return known[1]
        return ""

    def tell(self, note: Callable[[str], None], most: int) -> None:
        """Notes on them, the most frequent first."""
        for (name, origin, line), count in self.found.most_common(most):
            where = f" at {line}" if line else ""
            note(f"device hop: {name} ran on the CPU on values taken from {origin}{where} ({count} times)")
