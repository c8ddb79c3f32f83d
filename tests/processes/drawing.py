"""A share of a long table of like cases, drawn by a fixed seed; ``PRECISION_ALIGN_FULL=1`` takes all.

For tables whose whole run is a named command with a committed result. Never for the only test of a feature.
"""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from typing import TypeVar

Item = TypeVar("Item")
SEED = 0
IS_FULL = os.environ.get("PRECISION_ALIGN_FULL") == "1"


def draw(table: Sequence[Item], share: float) -> list[Item]:
    """About ``share`` of the items, in their order; the same ones in every process."""
    if IS_FULL:
        return list(table)
    places = random.Random(SEED).sample(range(len(table)), max(1, round(share * len(table))))
    return [table[place] for place in sorted(places)]
