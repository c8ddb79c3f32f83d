"""Distributed tensors: the local shard, and how it fits into the whole."""

from __future__ import annotations

from typing import Any, Optional

import torch


def is_distributed(tensor: torch.Tensor) -> bool:
    """Whether this is a DTensor (a class whose module has moved between versions of torch)."""
    return any(kind.__name__ == "DTensor" and kind.__module__.startswith("torch.") for kind in type(tensor).__mro__)


def local_shard(tensor: torch.Tensor) -> torch.Tensor:
    """What this rank holds of a DTensor, without communication; any other tensor as it is."""
    if not is_distributed(tensor):
        return tensor
    return wait_for(tensor._local_tensor)  # type: ignore[attr-defined]  # to_local() would make an autograd node


def wait_for(tensor: torch.Tensor) -> torch.Tensor:
    """The result of a collective that is still under way, when it is there; any other tensor as it is."""
    if type(tensor).__name__ != "AsyncCollectiveTensor":
        return tensor
    waited: torch.Tensor = tensor.wait()  # type: ignore[attr-defined]
    return waited


def describe_shard(tensor: torch.Tensor) -> Optional[dict[str, Any]]:
    """Placement and mesh as JSON, None for other tensors.

    ``placements`` one a mesh dimension, such as "Shard(0)"; ``mesh`` the ranks; ``coordinate`` of this rank in it;
    ``global_shape`` and ``global_stride`` of the whole tensor.
    """
    if not is_distributed(tensor):
        return None
    described: Any = tensor
    mesh = described.device_mesh
    coordinate = mesh.get_coordinate()
    names = getattr(mesh, "mesh_dim_names", None)
    return {
        "placements": [_name_placement(placement) for placement in described.placements],
        "mesh": mesh.mesh.tolist(),
        "mesh_names": list(names) if names else [],
        "coordinate": None if coordinate is None else [int(number) for number in coordinate],
        "global_shape": [int(size) for size in tensor.shape],
        "global_stride": [int(step) for step in tensor.stride()],
    }


def _name_placement(placement: Any) -> str:
    """The same text in every version of torch: "Shard(0)", "Replicate", "Partial(sum)"."""
    kind = type(placement).__name__.lstrip("_")
    if hasattr(placement, "dim"):
        return f"{kind}({placement.dim})"
    operation = getattr(placement, "reduce_op", None)
    return kind if operation is None else f"{kind}({operation})"
