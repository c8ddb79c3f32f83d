"""Hash, statistics and sketch of many tensors in one compiled call: small ones cost their bytes, not their calls."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import numpy as np

from precision_align.core.dtypes import Array
from precision_align.numerics.folding import TABLE
from precision_align.numerics.sketches import count_buckets, repeated_signs
from precision_align.numerics.statistics import is_safe
from precision_align.numerics.summaries import FORM_NUMBERS, JOB, load_summaries

# The values of a :class:`~precision_align.core.records.Statistics`, in the order of its fields.
Values = tuple[int, int, int, int, int, float, float, float, float]


class Lying(NamedTuple):
    """A tensor's C-contiguous words in memory; ``dtype``: its torch name; ``sketched``: a sketch is wanted."""

    address: int
    numel: int
    nbytes: int
    dtype: str
    sketched: bool


class Found(NamedTuple):
    """What was found of one tensor; None: to be computed in another way, or not asked for."""

    digest: bytes
    values: Values | None
    sketch: Array | None


def summarize_batch(tensors: Sequence[Lying]) -> Sequence[Found] | None:
    """All at once, without the interpreter's lock; None where there is no compiled function.

    The caller keeps the memory alive. Statistics and sketch are those of :func:`~.statistics.summarize` and
    :func:`~.sketches.sketch` for float32, bfloat16, float16 and float64; of other dtypes there is the hash only, and of
    float64 tensors with values whose squares overflow or vanish no statistics.
    """
    compiled = load_summaries()
    if compiled is None or not tensors:
        return None
    jobs = np.zeros(len(tensors), dtype=JOB)
    addresses, numels, sizes, dtypes, sketched = zip(*tensors)
    jobs["data"], jobs["count"], jobs["nbytes"] = addresses, numels, sizes
    jobs["minimum"], jobs["maximum"] = math.inf, -math.inf
    jobs["form"] = forms = [FORM_NUMBERS.get(dtype, 0) for dtype in dtypes]
    sketches = [
        np.empty(count_buckets(numel)) if wanted and form else None
        for numel, wanted, form in zip(numels, sketched, forms)
    ]
    if any(sketched):
        jobs["buckets"] = [0 if sketch is None else sketch.size for sketch in sketches]
        jobs["sketch"] = [0 if sketch is None else sketch.ctypes.data for sketch in sketches]
    compiled.summarize_many(jobs, TABLE, _signs())
    return list(map(Found, _digests(jobs), _values(jobs), sketches))


@cache
def _signs() -> Array:
    return np.concatenate([repeated_signs(which) for which in (0, 1)]).astype(np.float32)


def _digests(jobs: Array) -> Sequence[bytes]:
    data = jobs["digest"].tobytes()
    return [data[start : start + 16] for start in range(0, len(data), 16)]


def _values(jobs: Array) -> Sequence[Values | None]:
    finite = jobs["count"] - jobs["nan"] - jobs["inf"]
    some = finite > 0
    with np.errstate(all="ignore"):
        mean = np.where(some, (jobs["sum"] + jobs["sum_rest"]) / finite, math.nan)
        l2 = np.where(some, np.sqrt(jobs["square"] + jobs["square_rest"]), math.nan)
    columns = [jobs[name] for name in ("count", "nan", "inf", "zero", "subnormal")]
    columns += [np.where(some, jobs[name], math.nan) for name in ("minimum", "maximum")]
    rows = zip(*(column.tolist() for column in (*columns, mean, l2)))
    return [row if _is_valid(form, row) else None for form, row in zip(jobs["form"].tolist(), rows)]


def _is_valid(form: int, row: Values) -> bool:
    if form != FORM_NUMBERS["float64"]:
        return form > 0
    largest = max(abs(row[5]), abs(row[6]))
    return math.isnan(largest) or is_safe(largest)
