"""What the index rows of all tensors of one form have in common, made once."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple, Optional, Union

import numpy as np

from precision_align.core.dtypes import Dtype, dtype_of
from precision_align.core.records import TensorRecord
from precision_align.storage import layout
from precision_align.storage.drafts import Form

# About 1.5 KB each: the forms of a step. A run with batches of many lengths has ever new ones.
_MAX_PATTERNS = 1 << 14
_NO_EXTRA: Mapping[str, Any] = {}


class Pattern(NamedTuple):
    """``row``: one packed row of :data:`layout.INDEX` with dtype, dimensions and nothing else; ``names``: of dtype,
    layout and device; ``wide``: shape and stride where the row cannot hold them; ``repeats``: some stride is 0;
    ``extra``: of the form, for the records."""

    row: bytes
    dtype: str
    names: tuple[str, str, str]
    wide: Optional[list[list[int]]]
    stride: tuple[int, ...]
    repeats: bool
    itemsize: int
    nbytes: int
    extra: Mapping[str, Any]


class Patterns:
    """Finds the pattern of a tensor. The same form again costs one look."""

    def __init__(self) -> None:
        self._known: dict[Any, Pattern] = {}

    def find_all(self, forms: Sequence[Form]) -> list[Pattern]:
        """Of forms, by identity. Raises OverflowError where a size is beyond 64 bits."""
        found = map(self._known.get, forms)
        return [pattern or self._add(form, _make_pattern(form)) for form, pattern in zip(forms, found)]

    def find_record(self, record: TensorRecord) -> Pattern:
        """Of a record; its ``extra`` is no part of it. Raises OverflowError where a size is beyond 64 bits."""
        shape, stride = tuple(record.shape), tuple(record.stride)
        looks = (record.dtype, shape, stride, record.layout, record.device, record.requires_grad)
        return self._known.get(looks) or self._add(looks, _make_pattern(record)._replace(extra=_NO_EXTRA))

    def _add(self, name: Any, pattern: Pattern) -> Pattern:
        if len(self._known) >= _MAX_PATTERNS:
            self._known.clear()
        self._known[name] = pattern
        return pattern


def _make_pattern(form: Union[Form, TensorRecord]) -> Pattern:
    shape, stride, dtype = tuple(form.shape), tuple(form.stride), find_dtype(form.dtype)
    row = np.zeros(1, dtype=layout.INDEX)
    row["flags"] = layout.REQUIRES_GRAD if form.requires_grad else 0
    row["ndim"] = len(shape)
    for name, sizes in (("shape", shape[: layout.MAX_DIMS]), ("stride", stride[: layout.MAX_DIMS])):
        row[name][0, : len(sizes)] = sizes
    if dtype is not None:
        row["dtype"], row["word"] = dtype.code, dtype.word
    itemsize = 0 if dtype is None else dtype.itemsize
    return Pattern(
        row.tobytes(),
        form.dtype,
        (form.dtype, form.layout, form.device),
        [list(shape), list(stride)] if len(shape) > layout.MAX_DIMS or len(stride) != len(shape) else None,
        stride,
        0 in stride,
        itemsize,
        itemsize * math.prod(shape),
        form.extra,
    )


@cache
def word_type(name: str) -> Optional[np.dtype[Any]]:
    """The type of the raw words of a torch dtype, None where it has none here."""
    dtype = find_dtype(name)
    return None if dtype is None else np.dtype(dtype.word)


def find_dtype(name: str) -> Optional[Dtype]:
    """The table row of a torch dtype name, or None for a type that has no raw-word form here."""
    try:
        return dtype_of(name)
    except KeyError:
        return None
