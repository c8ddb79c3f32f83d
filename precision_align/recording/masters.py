"""What an optimizer updates in place of a model's parameters: fp32 copies, and this rank's pieces of them.

The frameworks that keep such copies leave word of them on the parameter; nothing here communicates between ranks:

- Megatron-core: ``main_param`` (a copy, or this rank's piece of one where the optimizer is distributed);
- DeepSpeed ZeRO 1 and 2 and its bf16 optimizer: ``_hp_mapping.hp_fragment``, a piece of a flat buffer;
- DeepSpeed ZeRO 3: ``_z3_optimizer`` with ``grad_position``: number, offset and length in its flat buffers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Optional

import torch

from precision_align.recording.parameters import Owned, gradient_of


@dataclass(frozen=True)
class Master(Owned):
    """The copy of one parameter: ``tensor``, of the parameter's shape, or flat where it is a piece; it is a view of
    ``held``, which is what the optimizer's groups hold, from element ``start`` on. ``like``: the parameter.
    """

    held: torch.Tensor
    start: int
    like: torch.Tensor

    @property
    def is_exact(self) -> bool:
        """Whether it is the whole parameter in the same type, so that its update is the parameter's."""
        return self.tensor.shape == self.like.shape and self.tensor.dtype is self.like.dtype

    def cut(self, tensor: torch.Tensor) -> torch.Tensor:
        """The part of a gradient or state of ``held`` that is this parameter's; others (a step count) as they are."""
        if tensor.shape != self.held.shape:
            return tensor
        return tensor.detach().reshape(-1)[self.start : self.start + self.tensor.numel()].view(self.tensor.shape)


def find_master(parameter: torch.Tensor) -> Optional[torch.Tensor]:
    """The copy, or piece of one, that an optimizer updates for this parameter; None for nearly all parameters."""
    found = getattr(parameter, "main_param", None)
    mapping = getattr(parameter, "_hp_mapping", None)
    if found is None and mapping is not None:
        found = mapping.hp_fragment
    if found is None and hasattr(parameter, "_z3_optimizer"):
        found = _find_partition(parameter)
    return found if isinstance(found, torch.Tensor) and found.numel() else None


def _find_partition(parameter: Any) -> Optional[torch.Tensor]:
    owner = parameter._z3_optimizer
    flats, positions = getattr(owner, "fp32_partitioned_groups_flat", None), getattr(owner, "grad_position", {})
    place = positions.get(owner.get_param_id(parameter)) if flats else None
    if flats is None or place is None:
        return None
    number, offset, length = (int(value) for value in place)
    flat: Optional[torch.Tensor] = flats[number]
    return None if flat is None else flat.detach()[offset : offset + length]


def find_masters(owned: Sequence[Owned], held: Sequence[torch.Tensor]) -> list[Master]:
    """The copies among what an optimizer's groups hold."""
    buffers = {tensor.untyped_storage().data_ptr(): tensor for tensor in held if tensor.numel()}
    if not buffers:
        return []
    masters = []
    for item in owned:
        piece = find_master(item.tensor)
        buffer = None if piece is None else buffers.get(piece.untyped_storage().data_ptr())
        if piece is None or buffer is None:
            continue
        start = piece.storage_offset() - buffer.storage_offset()
        if 0 <= start <= buffer.numel() - piece.numel():
            masters.append(Master(item.scope, item.local, _shape(piece, item.tensor), buffer, start, item.tensor))
    return masters


def _shape(piece: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
    """Of the parameter's shape where it is all of it; ZeRO 3 has emptied the parameter, but knows what it was."""
    shape = getattr(parameter, "ds_shape", parameter.shape)
    return piece.detach().view(shape) if piece.numel() == shape.numel() else piece.detach()


def gradient_to_record(item: Owned) -> Optional[torch.Tensor]:
    """The gradient that an optimizer is to see."""
    if not isinstance(item, Master):
        return gradient_of(item.tensor)
    gradient = item.held.grad
    if gradient is None:
        gradient = getattr(item.held, "decoupled_grad", None)  # Megatron's precision-aware optimizer
    return None if gradient is None else item.cut(gradient)
