"""Delta debugging: the smallest part of a set that still does it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

Subset = tuple[str, ...]


def minimise(items: Sequence[str], does_it: Callable[[Subset], bool]) -> Subset:
    """A part of ``items``, which as a whole does it, of which no element can be left out.

    ``does_it``: asked about parts, in the order of ``items``; a part that cannot be tried counts as one that does not.
    Source: Zeller and Hildebrandt, "Simplifying and isolating failure-inducing input", 2002, algorithm ddmin.
    """
    current, count = tuple(items), 2
    while len(current) > 1:
        parts = split(current, count)
        rests = [tuple(item for item in current if item not in part) for part in parts] if count > 2 else []
        smaller = next((subset for subset in (*parts, *rests) if does_it(subset)), None)
        if smaller is not None:
            count = 2 if smaller in parts else max(count - 1, 2)
            current = smaller
        elif count < len(current):
            count = min(2 * count, len(current))
        else:
            break
    return current


def split(items: Subset, count: int) -> list[Subset]:
    """``count`` parts of nearly equal length, in order."""
    bounds = [len(items) * index // count for index in range(count + 1)]
    return [items[start:end] for start, end in zip(bounds, bounds[1:])]
