"""The loss of a run on several ranks: each rank records its own part's, and one device the whole batch's."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from precision_align.core.records import Point
from precision_align.core.terms import Role
from precision_align.storage.base import Dump

_SAME = 1e-6  # relative: a point is the recorded loss as a Python number


def average_ranks(dump: Dump, points: Sequence[Point]) -> tuple[list[Point], str]:
    """The points of the lowest rank's loss as means over all ranks, and a note; as they are where that says nothing.

    That is where ranks have equal losses, where one lacks a loss, or where the series is not the recorded loss.
    """
    ranks = list(dump.ranks)
    if len(ranks) < 2:
        return list(points), ""
    losses: dict[tuple[int, int], dict[int, float]] = defaultdict(dict)
    for record in dump.records:
        key = record.key
        if key.role == Role.LOSS and key.path == "loss" and record.statistics is not None:
            losses[key.step, key.micro].setdefault(key.rank, record.statistics.mean)
    means, moved = [], False
    for point in points:
        held = losses.get((point.step, point.micro), {})
        known = held.get(ranks[0], math.nan)
        if set(held) != set(ranks) or not math.isclose(known, point.value, rel_tol=_SAME):
            return list(points), ""
        moved = moved or len(set(held.values())) > 1
        means.append(replace(point, value=sum(held.values()) / len(held)))
    if not moved:
        return list(points), ""
    return (
        means,
        f"each rank has the loss of its part of the batch: the mean of ranks {', '.join(map(str, ranks))} is taken",
    )
