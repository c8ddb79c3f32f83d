"""Which explanation comes first: what leaves less of the error; of two that leave about the same, the simpler one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from precision_align.core.dtypes import Array
from precision_align.core.results import Explanation

MOST = 5
# Residuals below the same of these are as good as equal: what is left is rounding, and its size is chance.
LEVELS = (0.003, 0.01, 0.03, 0.06, 0.1, 0.15)
# What only says where and how the error lies, with a free number for each row or place: it always fits a little better.
# In this order.
DESCRIPTIONS = ("zeroed", "confined", "weight values", "channel scales", "row statistics", "row shift")
# What any operation may suffer, the likelier first: behind a guess that says what it was taken for.
EDITS = ("flag", "dimension", "parts swapped", "left out", "constant", "sign of", "lower type inside", "scaled inside")
SAME = 1e-6  # of the error: two guesses that differ by less come to the same

Candidate = tuple[Explanation, Array | None]


def rank(found: Sequence[Candidate], error: float) -> list[Explanation]:
    """The best few, those of equal effect as one; ``error``: the norm that residuals are measured in."""
    ordered = sorted(found, key=lambda pair: _place(pair[0]))
    kept: list[Candidate] = []
    for item, value in ordered:
        twin = next((number for number, other in enumerate(kept) if _is_same((item, value), other, error)), None)
        if twin is None:
            kept.append((item, value))
        elif kept[twin][0].text.count("; or ") < 1 and item.text not in kept[twin][0].text:
            kept[twin] = replace(kept[twin][0], text=f"{kept[twin][0].text}; or {item.text}"), kept[twin][1]
    return [item for item, _ in kept[:MOST]]


def measure_level(residual: float) -> int:
    """Residuals of one level are as good as equal."""
    return sum(residual > limit for limit in LEVELS)


def _place(item: Explanation) -> tuple[int, int, float]:
    general = EDITS.index(item.name) + 1 if item.name in EDITS else 0
    if item.name in DESCRIPTIONS:
        general = len(EDITS) + 1 + DESCRIPTIONS.index(item.name)
    return measure_level(item.residual), general, item.residual


def _is_same(left: Candidate, right: Candidate, error: float) -> bool:
    if left[0].text == right[0].text:
        return True
    (one, first), (other, second) = left, right
    same_kind = (one.name in DESCRIPTIONS) == (other.name in DESCRIPTIONS)
    if not same_kind or first is None or second is None or first.shape != second.shape:
        return False
    with np.errstate(all="ignore"):
        return float(np.linalg.norm(np.nan_to_num(first - second))) <= SAME * error
