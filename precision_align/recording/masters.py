"""What an optimizer updates in place of a model's parameters: fp32 copies, and this rank's pieces of them.

The frameworks that keep such copies leave word of them on the parameter; nothing here communicates between ranks:

- Megatron-core: ``main_param`` (a copy, or this rank's piece of one where the optimizer is distributed);
- DeepSpeed ZeRO 1 and 2 and its bf16 optimizer: ``_hp_mapping.hp_fragment``, a piece of a flat buffer;
- DeepSpeed ZeRO 3: ``_z3_optimizer`` with ``grad_position``: number, offset and length in its flat buffers.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Optional

import torch
from torch.nn.parameter import is_lazy

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


def is_managed(parameter: torch.Tensor) -> bool:
    """Whether a framework's optimizer will update it, even where none is found that holds it."""
    return hasattr(parameter, "main_grad") or find_master(parameter) is not None


def find_masters(owned: Sequence[Owned], held: Sequence[torch.Tensor]) -> list[Master]:
    """What an optimizer's groups hold of these parameters: their copies, or pieces of their own memory."""
    memory = _Memory(held)
    masters = []
    for item in owned:
        piece = find_master(item.tensor)
        if piece is None:  # Megatron's distributed optimizer updates fp32 parameters by pieces, in place
            piece = buffer = memory.find_within(item.tensor)
        else:
            buffer = memory.find_around(piece)
        if piece is not None and buffer is not None:
            start = (piece.data_ptr() - buffer.data_ptr()) // piece.element_size()
            masters.append(Master(item.scope, item.local, _shape(piece, item.tensor), buffer, start, item.tensor))
    return masters


class _Memory:
    """Tensors by where they lie."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self._tensors = sorted(filter(_has_elements, tensors), key=torch.Tensor.data_ptr)
        self._starts = [tensor.data_ptr() for tensor in self._tensors]

    def find_around(self, piece: torch.Tensor) -> Optional[torch.Tensor]:
        """The one that holds all of this piece."""
        index = bisect_right(self._starts, piece.data_ptr()) - 1
        return self._tensors[index] if index >= 0 and _end(piece) <= _end(self._tensors[index]) else None

    def find_within(self, whole: torch.Tensor) -> Optional[torch.Tensor]:
        """The first that lies within this tensor."""
        index = bisect_left(self._starts, whole.data_ptr()) if _has_elements(whole) else len(self._starts)
        return self._tensors[index] if index < len(self._starts) and _end(self._tensors[index]) <= _end(whole) else None


def _has_elements(tensor: torch.Tensor) -> bool:
    return not is_lazy(tensor) and tensor.numel() > 0


def _end(tensor: torch.Tensor) -> int:
    return tensor.data_ptr() + tensor.numel() * tensor.element_size()


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
