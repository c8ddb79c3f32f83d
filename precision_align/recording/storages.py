"""The memory behind a tensor, known without holding it."""

from __future__ import annotations

from typing import Optional

import torch
from torch.multiprocessing.reductions import StorageWeakRef


def storage_of(tensor: torch.Tensor) -> Optional[StorageWeakRef]:
    """A weak reference to its storage, None for tensors that have none (sparse, opaque, wrapped)."""
    try:
        with torch._C.DisableTorchFunction():  # asking for a storage dispatches nothing
            return StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]
    except (RuntimeError, NotImplementedError):
        return None
