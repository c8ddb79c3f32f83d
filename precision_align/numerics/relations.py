"""How a tensor stands to the sum of others: it is the sum, a multiple of it, or something else. Block by block."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Optional

import numpy as np

from precision_align.core.dtypes import Array, Dtype, widen
from precision_align.numerics.pairs import Flat, cut

Typed = tuple[Array, Dtype]

# Elements a block: 128 KiB of float64, of which half a dozen stay in a core's L2 cache.
_STEP = 1 << 14


@dataclass(frozen=True)
class Relation:
    """``factor``: total over sum where one is a multiple of the other, else None."""

    is_sum: bool
    factor: Optional[float]


@dataclass
class _Sums:
    """Over the blocks: largest |total - sum| and largest |part| of each part, and products of total and sum."""

    apart: float
    largest: Array
    product: float = 0.0
    square: float = 0.0


def relate_to_sum(total: Typed, parts: Sequence[Typed], slack: float) -> Optional[Relation]:
    """The relation of raw words to the sum of other tensors' of one shape; None where a value of the total is not
    finite.

    ``slack``: what rounding may do, in units of the sum of the parts' largest values. Float64; under 1 MB of
    extra memory a part whatever the size; a complex value counts as its two parts.
    """
    with np.errstate(all="ignore"):
        sums = _add_up(total, parts)
        if sums is None:
            return None
        largest = float(sums.largest.sum())
        if sums.apart <= slack * max(largest, 1e-300):
            return Relation(True, 1.0)
        factor = sums.product / sums.square if sums.square > 0 else 0.0
        left = max((_largest(values - factor * summed) for values, summed, _ in _read(total, parts)), default=0.0)
        return Relation(False, factor if left <= slack * abs(factor) * largest else None)


def _add_up(total: Typed, parts: Sequence[Typed]) -> Optional[_Sums]:
    sums = _Sums(0.0, np.zeros(len(parts)))
    for values, summed, others in _read(total, parts):
        if not np.isfinite(values).all():
            return None
        # a NaN in a part must reach every comparison below, which it then fails
        sums.apart = float(np.maximum(sums.apart, _largest(values - summed)))
        sums.largest = np.maximum(sums.largest, [_largest(part) for part in others])
        sums.product += float(np.dot(values, summed))
        sums.square += float(np.dot(summed, summed))
    return sums


def _read(total: Typed, parts: Sequence[Typed]) -> Iterator[tuple[Array, Array, list[Array]]]:
    """Blocks of (total, sum of the parts, the parts) as float64."""
    flat, others = Flat(total[0]), [Flat(words) for words, _ in parts]
    for start, stop in cut(total[0].size, _STEP):
        values = _to_float64(flat.piece(start, stop), total[1])
        pieces = [_to_float64(other.piece(start, stop), dtype) for other, (_, dtype) in zip(others, parts)]
        summed = pieces[0] if len(pieces) == 1 else np.sum(pieces, axis=0) if pieces else np.zeros_like(values)
        yield values, summed, pieces


def _to_float64(words: Array, dtype: Dtype) -> Array:
    values: Any = widen(words, dtype)
    if values.dtype.kind == "c":
        values = np.ascontiguousarray(values, dtype=np.complex128).view(np.float64)
    return np.asarray(values, dtype=np.float64)


def _largest(values: Array) -> float:
    return float(np.max(np.abs(values), initial=0.0))
