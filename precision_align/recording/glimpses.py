"""What an operator draws inside: the random tensors that it makes on its way, seen or replaced as they are made."""

from __future__ import annotations

from typing import Any, Callable, Optional

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from precision_align.recording.masks import FUSED, NOISE

# Operators that fill a tensor with random numbers and do nothing else.
_FILLING = frozenset(
    {"bernoulli_", "exponential_", "uniform_", "normal_", "random_", "geometric_", "rand", "rand_like", "randn"}
)
# Operators that return (result, mask).
_DROPPING = frozenset({"native_dropout", "_fused_dropout"})


class Glimpse(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Open around one call only; ``keep``: masks of dropout, with the kernel that drew them, in their order.

    ``fill``: told of each tensor that was filled with random numbers, under its operator's name; it may write into it.
    """

    def __init__(self, fill: Optional[Callable[[str, torch.Tensor], None]] = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._fill = fill
        self.keep: list[tuple[torch.Tensor, str]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = str(getattr(func, "_schema", func).name).rpartition("::")[2]
        if name in _DROPPING:
            self.keep.append((result[1].bool(), FUSED))
        elif name in _FILLING and self._fill is not None:
            self._fill(name, result)
        elif name == "bernoulli_":
            self.keep.append((result != 0, NOISE))
        return result
