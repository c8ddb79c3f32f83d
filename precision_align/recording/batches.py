"""Cheap facts of every batch, recorded or not, so that the batch of a spike can be ranked against the others.

Series points: ``batch.fingerprint`` (48 bits of the hash of all input tensors on the CPU), ``batch.length`` (the last
dimension of the first integer input), ``batch.padding_share`` (share of zeros in what is called a mask),
``batch.valid_labels`` (labels that are not -100) and ``batch.id.NAME`` (integer tensors of up to 8 elements that are
called an id or index, as 48 bits of their hash where there are several).
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from precision_align.core.trees import flatten
from precision_align.recording.companions import Companion
from precision_align.recording.series import Series
from precision_align.recording.staging import untouched
from precision_align.recording.tape import Clock
from precision_align.storage.hashing import digest_bytes

IGNORED_LABEL = -100  # torch.nn.CrossEntropyLoss's default ignore_index, which the common data collators write
_HASHED_BITS = 48  # what a float64 holds exactly, with room to spare
_MAX_ID_ELEMENTS = 8
_MAX_BYTES = 1 << 26  # per tensor: hashing runs at some GB/s, and this must stay small beside a step


class BatchFacts(Companion):
    """Adds the facts of each outermost call of the model to the step's series."""

    def __init__(self, model: torch.nn.Module, series: Series, clock: Clock) -> None:
        self._series, self._clock = series, clock
        self._names = _parameter_names(model)

    def start_batch(self, args: Any, kwargs: Any) -> None:
        """Look at the arguments; tensors on a device are left alone, as reading them would make it wait."""
        named = dict(zip(self._names, args))
        named.update({str(index): value for index, value in enumerate(args) if index >= len(self._names)})
        leaves = flatten({**named, **kwargs}, lambda value: isinstance(value, torch.Tensor))[1]
        with untouched():
            arrays = {path: array for path, tensor in leaves for array in _read(tensor)}
        for name, value in describe_batch(arrays):
            self._series.add(f"batch.{name}", self._clock.batch, value, given=False)


def _parameter_names(model: torch.nn.Module) -> list[str]:
    try:
        parameters = inspect.signature(model.forward).parameters.values()
    except (TypeError, ValueError):
        return []
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [parameter.name for parameter in parameters if parameter.kind in kinds]


def _read(tensor: torch.Tensor) -> Iterator[np.ndarray[Any, Any]]:
    if tensor.device.type != "cpu" or tensor.layout is not torch.strided or tensor.is_quantized:
        return
    if type(tensor) is not torch.Tensor or tensor.numel() * tensor.element_size() > _MAX_BYTES:
        return
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
    yield plain.numpy() if plain.dtype is not torch.bfloat16 else plain.view(torch.int16).numpy()


def describe_batch(arrays: dict[str, np.ndarray[Any, Any]]) -> Iterator[tuple[str, float]]:
    """(name, value) of each fact of a batch given as path -> array."""
    if arrays:
        yield "fingerprint", _hash(b"".join(digest_bytes(array.tobytes()).encode() for array in arrays.values()))
    whole = {path: array for path, array in arrays.items() if array.dtype.kind in "iu" and array.ndim}
    for array in list(whole.values())[:1]:
        yield "length", float(array.shape[-1])
    for path, array in arrays.items():
        name = path.lower()
        if "mask" in name and array.size and array.dtype.kind in "biu":
            yield "padding_share", float(np.mean(array == 0))
        if ("label" in name or "target" in name) and path in whole:
            yield "valid_labels", float(np.count_nonzero(array != IGNORED_LABEL))
    for path, array in arrays.items():
        last = path.lower().rsplit(".", 1)[-1]
        if array.dtype.kind in "iu" and 0 < array.size <= _MAX_ID_ELEMENTS and _names_sample(last):
            yield f"id.{path}", float(array.reshape(-1)[0]) if array.size == 1 else _hash(array.tobytes())


def _names_sample(name: str) -> bool:
    return name in ("id", "ids", "idx", "index", "indices") or name.endswith(
        ("sample_id", "sample_ids", "_idx", "_index")
    )


def _hash(data: bytes) -> float:
    return float(int(digest_bytes(data)[: _HASHED_BITS // 4], 16))
