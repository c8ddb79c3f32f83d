"""Wrapper parts that frameworks put into module paths."""

from __future__ import annotations

# The attribute under which each wrapper keeps the module it wraps: DistributedDataParallel and DataParallel,
# torch.compile, activation checkpointing, FSDP, Lightning and DeepSpeed.
WRAPPER_PARTS = frozenset(
    {"module", "_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module", "_forward_module"}
)


def strip_wrappers(scope: str) -> str:
    """The module path without wrapper parts: "module._orig_mod.layers.0" -> "layers.0"."""
    return ".".join(part for part in scope.split(".") if part not in WRAPPER_PARTS)
