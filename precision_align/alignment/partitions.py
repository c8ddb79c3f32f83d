"""In which order the parts of a fused projection lie in the whole: one after the other, or interleaved by groups."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from precision_align.core.dtypes import Array


def list_partitions(parts: Sequence[Array]) -> Iterator[tuple[str, Array]]:
    """(name, whole) of every way in which the parts, joined along their first dimension, may lie.

    "in order"; "interleaved by N groups": the rows of each part are cut into N equal groups, and the groups of one
    number stand together (Megatron by key-value groups, GPT-NeoX by heads); either "transposed" (GPT-2 keeps its
    weights that way).
    """
    yield "in order", np.concatenate(parts)
    for groups in _count_groups([len(part) for part in parts]):
        cut = [part.reshape(groups, len(part) // groups, *part.shape[1:]) for part in parts]
        joined = np.concatenate(cut, axis=1)
        yield f"interleaved by {groups} groups", joined.reshape(-1, *parts[0].shape[1:])


def _count_groups(rows: Sequence[int]) -> Iterator[int]:
    """Numbers of groups that divide every part, from two on: heads are rarely more than 256."""
    common = int(np.gcd.reduce(rows)) if rows else 0
    yield from (number for number in range(2, min(common, 256) + 1) if common % number == 0)
