"""Gradients of outputs from which the same call computes other outputs: a sum of what the call itself sends back and of
what comes from its caller. No single replay gives it, but each of the two shares is one.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

import numpy as np

from precision_align.alignment.pairing import Alignment
from precision_align.alignment.side import Node, Side
from precision_align.comparison.replaying import ReplayProvider
from precision_align.core.dtypes import Array
from precision_align.core.errors import DumpError
from precision_align.core.records import TensorRecord
from precision_align.numerics.limits import raw_limit

# A lost share is named where the sum of both is this many times further off than the other share alone.
CLEARLY = 4.0


class Found(Enum):
    """What a recorded gradient is made of."""

    WHOLE = "the sum of what the caller and the call itself send back, each replayed"
    CALLERS = "all of it comes from the caller's code: the call's own share is zero or lost"
    OWN = "all of it comes from the call itself: the caller's share is zero or lost"


class Shares(NamedTuple):
    """(float64 golden, native replay) of the two shares of one gradient."""

    callers: tuple[Array, Array]
    own: tuple[Array, Array]


class InsideJudge:
    """Takes such sums apart by replay."""

    def __init__(self, alignment: Alignment, replay: ReplayProvider) -> None:
        self._alignment, self._replay = alignment, replay

    def judge(self, node: Node, child: int, record: TensorRecord) -> Found | None:
        """What the gradient of an output of the child call is made of; None where neither fits, or no replay does."""
        callers = self._replay.compute(node, child, record.key.path, True)
        own = self._replay.compute(node.children[child], -1, record.key.path, True)
        actual = _read(self._alignment.candidate, record)
        if callers is None or own is None or actual is None or not callers[0].shape == own[0].shape == actual.shape:
            return None
        limit, scale = raw_limit(record.dtype), max(_largest(actual), _largest(callers[0]), _largest(own[0]))
        # either arithmetic will do: shares that cancel leave little of one of them
        whole = min(_distance(actual, left + right, scale) for left, right in zip(callers, own))
        if whole <= limit:
            return Found.WHOLE
        for share, found in ((callers, Found.CALLERS), (own, Found.OWN)):
            alone = min(_distance(actual, values, scale) for values in share)
            if alone <= limit and CLEARLY * alone <= whole:
                return found
        return None

    def is_all_own(self, node: Node, record: TensorRecord) -> bool:
        """Whether on both sides nothing but the model's own code sends a gradient to this output of it."""
        partner = self._alignment.pairs.get(node)
        theirs = None if partner is None else partner.gradients.get(record.key.path)
        reference = self._alignment.reference
        if theirs is None or reference is None:
            return False
        sides = (
            (_read(self._alignment.candidate, record), self._replay.compute(node, -1, record.key.path, True)),
            (_read(reference, theirs), self._replay.compute_own(node, record.key.path)),
        )
        return all(
            actual is not None
            and own is not None
            and actual.shape == own[0].shape
            and min(_distance(actual, values, _largest(actual)) for values in own) <= raw_limit(record.dtype)
            for actual, own in sides
        )


def _read(side: Side, record: TensorRecord) -> Array | None:
    try:
        return side.dump.values(record.key).astype(np.float64)
    except (KeyError, DumpError):
        return None


def _largest(values: Array) -> float:
    return float(np.max(np.abs(values), initial=0.0))


def _distance(left: Array, right: Array, scale: float) -> float:
    """Largest difference over ``scale``; Inf where NaN or Inf is in it."""
    if scale == 0:
        return 0.0
    apart = _largest(left - right) / scale
    return apart if np.isfinite(apart) else float("inf")
