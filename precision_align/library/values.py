"""Arguments of a case as JSON and arrays, bit for bit, without pickle: tensors, numbers, texts, lists, tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import torch


@dataclass
class Store:
    """Arrays by the names under which they are kept."""

    arrays: dict[str, Any] = field(default_factory=dict)

    def add(self, array: Any) -> str:
        """Keep an array; its name."""
        name = f"a{len(self.arrays)}"
        self.arrays[name] = np.asarray(array)
        return name


def encode(value: Any, store: Store) -> Any:
    """A tree of plain JSON; arrays go to ``store``. Raises TypeError for what has no such form."""
    import torch

    if torch.is_tensor(value):
        return {"tensor": store.add(_to_words(value)), "dtype": str(value.dtype).replace("torch.", "")}
    if isinstance(value, torch.dtype):
        return {"dtype": str(value).replace("torch.", "")}
    if isinstance(value, Mapping):
        return {"items": [[str(key), encode(item, store)] for key, item in value.items()]}
    if isinstance(value, (list, tuple)):
        return {type(value).__name__: [encode(item, store) for item in value]}
    if value is None or isinstance(value, (bool, int, float, str)):
        return {"plain": value}
    raise TypeError(f"a {type(value).__name__} cannot be recorded: only tensors, numbers, texts, lists and tables can")


def decode(tree: Mapping[str, Any], arrays: Mapping[str, Any]) -> Any:
    """What was encoded."""
    import torch

    if "tensor" in tree:
        return _from_words(arrays[tree["tensor"]], getattr(torch, tree["dtype"]))
    if "dtype" in tree:
        return getattr(torch, tree["dtype"])
    if "items" in tree:
        return {key: decode(item, arrays) for key, item in tree["items"]}
    if "plain" in tree:
        return tree["plain"]
    if "tuple" in tree:
        return tuple(decode(item, arrays) for item in tree["tuple"])
    return [decode(item, arrays) for item in tree["list"]]


def _to_words(tensor: torch.Tensor) -> Any:
    """NumPy has no bfloat16 and no float8: those as whole numbers of their size."""
    import torch

    plain = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    words = {1: torch.uint8, 2: torch.int16}.get(plain.element_size()) if _is_low(plain.dtype) else None
    return plain.view(words).numpy() if words is not None else plain.numpy()


def _from_words(array: Any, dtype: torch.dtype) -> torch.Tensor:
    import torch

    tensor = torch.from_numpy(np.array(array))
    return tensor.view(dtype) if _is_low(dtype) else tensor.to(dtype)


def _is_low(dtype: torch.dtype) -> bool:
    """Floating with at most two bytes."""
    import torch

    return dtype.is_floating_point and torch.empty(0, dtype=dtype).element_size() <= 2
