"""Tensors as they were when they passed: to tell whether an output is an input, unchanged or written into."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any, Optional

import numpy as np
import torch

from precision_align.recording.copies import Staged
from precision_align.recording.staging import untouched


class Sighting:
    """A tensor object as it was when it passed: to tell whether an output is that very tensor, unchanged."""

    __slots__ = ("path", "reference", "staged", "version")

    def __init__(self, reference: Any, path: str, version: int, staged: Any) -> None:
        self.reference, self.path, self.version, self.staged = reference, path, version, staged

    @classmethod
    def of(cls, tensor: torch.Tensor, path: str, staged: Optional[Staged]) -> Sighting:
        """Remember a tensor without keeping it alive."""
        return cls(weakref.ref(tensor), path, version_of(tensor), staged)

    @classmethod
    def loosely(cls, tensor: torch.Tensor, path: str, staged: Optional[Staged]) -> Sighting:
        """Remember a tensor without keeping its copy alive either: for the many outputs of a call's children."""
        return cls(weakref.ref(tensor), path, version_of(tensor), None if staged is None else weakref.ref(staged))

    def has_version_of(self, tensor: torch.Tensor) -> bool:
        """Whether torch has counted no write since; False where it does not count."""
        return self.version != -1 and self.version == version_of(tensor)

    def holds(self, tensor: torch.Tensor, staged: Optional[Staged]) -> bool:
        """Whether this tensor is the remembered one and its values have not changed since."""
        if self.reference() is not tensor or not self.has_version_of(tensor):
            return False
        if self.staged is None or staged is None or staged.summary is not None:
            return True
        before = self.staged() if isinstance(self.staged, weakref.ref) else self.staged
        return same_bits(staged, before)  # writes through .data do not count as a new version


def version_of(tensor: torch.Tensor) -> int:
    """How often the tensor was written in place; -1 where torch does not count (inference mode)."""
    try:
        return tensor._version  # unlike is_inference() this does not give up the interpreter's lock
    except RuntimeError:
        return -1


def shares_memory(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Whether writing one may change the other."""
    try:
        with untouched():
            return left.untyped_storage().data_ptr() == right.untyped_storage().data_ptr() != 0
    except (RuntimeError, NotImplementedError):  # sparse and wrapped tensors have no storage to ask
        return left is right


def same_bits(left: Staged, right: Optional[Staged]) -> bool:
    """Whether two copies hold the same values, bit for bit; copies without words count as equal if described alike.

    Summaries of tensors on a device have to be there.
    """
    if right is None or left is right:
        return right is not None
    if left.form.shape != right.form.shape or left.form.dtype != right.form.dtype:
        return False
    if left.address and left.address == right.address:
        return True
    if left.summary is not None and right.summary is not None:
        return left.summary.digest == right.summary.digest != b""
    if left.words is None or right.words is None:
        return left.words is right.words
    return bool(np.array_equal(left.words.reshape(-1).view(np.uint8), right.words.reshape(-1).view(np.uint8)))


def describe_origin(known: Optional[Sighting], tensor: torch.Tensor, staged: Optional[Staged]) -> Mapping[str, str]:
    """Where a call's output was seen before: ``same_as`` unchanged, ``overwrites`` an input written in place."""
    if known is None:
        return {}
    if known.holds(tensor, staged):
        return {"same_as": known.path}
    return {"overwrites": known.path} if known.path.startswith("input.") else {}
