"""Hash, statistics and sketch of many tensors in one compiled call: small ones cost their bytes, not their calls."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import fields
from functools import cache
from typing import NamedTuple

import numpy as np

from precision_align.core.dtypes import Array
from precision_align.core.records import Statistics
from precision_align.numerics.folding import TABLE
from precision_align.numerics.sketches import count_buckets, repeated_signs
from precision_align.numerics.statistics import SAFE_EXPONENT
from precision_align.numerics.summaries import FORM_NUMBERS, FORM_SIZES, JOB, load_summaries

# The values of a :class:`~precision_align.core.records.Statistics`, in the order of its fields.
Values = tuple[int, int, int, int, int, float, float, float, float]
# A tensor's C-contiguous words: their address and bytes, the torch name of the dtype, and whether a sketch is wanted.
# Plain: a named tuple takes twice as long to make.
Lying = tuple[int, int, str, bool]
# Statistics as columns.
STATISTICS = np.dtype([(field.name, "<i8" if "int" in str(field.type) else "<f8") for field in fields(Statistics)])


class Summaries(NamedTuple):
    """What was found of n tensors.

    ``digests``: uint8[n, 16]; ``statistics``: STATISTICS[n]; ``complete``: bool[n], False where they are to be computed
    in another way; ``sketches``: None where that holds too, or none was wanted.
    """

    digests: Array
    statistics: Array
    complete: Array
    sketches: list[Array | None]


def make_room(count: int) -> Summaries:
    """Nothing found yet of so many tensors."""
    digests, statistics = np.zeros((count, 16), dtype=np.uint8), np.zeros(count, dtype=STATISTICS)
    return Summaries(digests, statistics, np.zeros(count, dtype=np.bool_), [None] * count)


def summarize_batch(tensors: Sequence[Lying]) -> Summaries | None:
    """All at once, without the interpreter's lock; None where there is no compiled function.

    The caller keeps the memory alive. Statistics and sketch are those of :func:`~.statistics.summarize` and
    :func:`~.sketches.sketch` for float32, bfloat16, float16 and float64; of other dtypes there is the hash only, and of
    float64 tensors with values whose squares overflow or vanish no statistics.
    """
    compiled = load_summaries()
    if compiled is None or not tensors:
        return None
    found = make_room(len(tensors))
    jobs = np.zeros(len(tensors), dtype=JOB)
    addresses, sizes, dtypes, sketched = zip(*tensors)
    jobs["data"], jobs["nbytes"] = addresses, sizes
    jobs["form"] = [FORM_NUMBERS.get(dtype, 0) for dtype in dtypes]
    jobs["count"] = jobs["nbytes"] // FORM_SIZES[jobs["form"]]
    jobs["minimum"], jobs["maximum"] = math.inf, -math.inf
    if any(sketched):
        _make_sketches(jobs, np.array(sketched), found.sketches)
    compiled.summarize_many(jobs, TABLE, _signs())
    found.digests[:] = jobs["digest"]
    _finish_statistics(jobs, found)
    return found


@cache
def _signs() -> Array:
    return np.concatenate([repeated_signs(which) for which in (0, 1)]).astype(np.float32)


def _make_sketches(jobs: Array, sketched: Array, sketches: list[Array | None]) -> None:
    for place in np.flatnonzero(sketched & (jobs["form"] > 0)).tolist():
        buckets = count_buckets(int(jobs["count"][place]))
        sketches[place] = sketch = np.empty(buckets)
        jobs["buckets"][place], jobs["sketch"][place] = buckets, sketch.ctypes.data


def _finish_statistics(jobs: Array, found: Summaries) -> None:
    statistics = found.statistics
    for name in ("nan", "inf", "zero", "subnormal", "minimum", "maximum"):
        statistics[name] = jobs[name]
    statistics["numel"] = jobs["count"]
    finite = jobs["count"] - jobs["nan"] - jobs["inf"]
    with np.errstate(all="ignore"):
        statistics["mean"] = (jobs["sum"] + jobs["sum_rest"]) / finite
        statistics["l2"] = np.sqrt(jobs["square"] + jobs["square_rest"])
    for name in ("minimum", "maximum", "mean", "l2"):
        statistics[name][finite <= 0] = math.nan
    exponents = np.frexp(np.fmax(np.abs(statistics["minimum"]), np.abs(statistics["maximum"])))[1]
    wide = (jobs["form"] == FORM_NUMBERS["float64"]) & (np.abs(exponents) > SAFE_EXPONENT)
    found.complete[:] = (jobs["form"] > 0) & ~wide
