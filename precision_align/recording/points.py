"""What the user hands to ``save`` and ``log``."""

from __future__ import annotations

from typing import Any, Union

import torch

from precision_align.core.errors import UsageError
from precision_align.recording.staging import untouched


def check_saved(name: Any, tensor: Any) -> None:
    """Raises UsageError where ``save`` was given something else than a name and a tensor."""
    if not isinstance(name, str) or not isinstance(tensor, torch.Tensor):
        given = f"{name!r:.40} and a {type(tensor).__name__}"
        raise UsageError(f"save() takes a name and a tensor, not {given}; see log() for numbers")


def read_number(name: str, value: Any) -> Union[float, torch.Tensor]:
    """What ``log`` was given: a number, or a copy of a one-element tensor. Raises UsageError for anything else."""
    if isinstance(value, torch.Tensor) and value.numel() == 1 and not value.is_complex():
        with untouched():
            return value.detach().clone()
    try:
        return float(value)
    except (TypeError, ValueError):
        raise UsageError(
            f"log({name}=...) takes a number or a one-element tensor, not {type(value).__name__}"
        ) from None
