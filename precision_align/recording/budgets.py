"""A byte budget for payloads: over it, tensors are kept as sketches or statistics instead of failing."""

from __future__ import annotations

import math
import weakref
from typing import Any, Optional

from precision_align.core.terms import Tier
from precision_align.numerics.sampling import SAMPLES
from precision_align.numerics.sketches import count_buckets
from precision_align.recording.copies import Staged
from precision_align.storage.entries import WHOLE_BELOW

# Where nobody knows how many steps will come, each may take this share of what is left: it never runs out.
_SHARE_OF_REST = 8
# What is kept where the tier that was asked for does not fit: a sketch says more by the byte than a sample.
_LADDER = (Tier.SKETCH, Tier.STATISTICS)
_COSTLY = (Tier.FULL, Tier.SAMPLE, Tier.SKETCH)


class Budget:
    """Decides the tier of each tensor of one rank.

    Within a step tensors are taken as they come, until the step's share of the budget is used up. A step that did not
    fit teaches the next one: the tensors above a size are then kept as sketches from the start, so that small ones are
    kept in full all along the step. The decision depends on sizes alone, not on values, so that two runs of one model
    keep the same tensors.
    """

    def __init__(self, limit: int, num_steps: Optional[int]) -> None:
        self._left, self._steps_left = limit, num_steps
        self._allowance = self._share()
        self._used = 0
        self._cutoff: Optional[int] = None
        self._sizes: list[tuple[int, int]] = []  # in full, as a sketch
        self._degraded: dict[Tier, int] = {}
        self._seen: dict[int, Any] = {}

    def _share(self) -> int:
        return self._left // (_SHARE_OF_REST if self._steps_left is None else max(self._steps_left, 1))

    def choose(self, wanted: Tier, staged: Staged) -> tuple[Tier, str]:
        """The tier that fits, and the reason where it is less than was wanted."""
        words = _payload(staged)
        if wanted not in _COSTLY or words is None or self._is_known(words):
            return wanted, ""
        if wanted is Tier.FULL:
            self._sizes.append((staged.nbytes, _cost(Tier.SKETCH, staged)))
        for tier in dict.fromkeys((wanted, *_LADDER)):
            cost = _cost(tier, staged)
            above = self._cutoff is not None and tier is Tier.FULL and staged.nbytes > self._cutoff
            if tier is Tier.STATISTICS or (not above and self._used + cost <= self._allowance):
                self._used += cost
                break
        if tier is wanted:
            self._seen[id(words)] = weakref.ref(words)
            return wanted, ""
        self._degraded[tier] = self._degraded.get(tier, 0) + 1
        return tier, f"over the byte budget: {tier} instead of {wanted}"

    def _is_known(self, words: Any) -> bool:
        """Whether these words are stored already in this step."""
        known = self._seen.get(id(words))
        return known is not None and known() is words

    def finish_step(self, step: int) -> str:
        """Close a step's account; the note to write, "" where all fitted."""
        self._left = max(0, self._left - self._used)
        if self._steps_left is not None:
            self._steps_left -= 1
        self._allowance = self._share()
        self._cutoff = self._find_cutoff()
        degraded = ", ".join(f"{count} as {tier}" for tier, count in self._degraded.items())
        self._used, self._sizes, self._degraded, self._seen = 0, [], {}, {}
        return f"step {step}: over the byte budget, kept {degraded}" if degraded else ""

    def _find_cutoff(self) -> Optional[int]:
        """The size up to which tensors of a step like the last one fit in full, None where all do."""
        sizes = sorted(self._sizes)
        if sum(full for full, _ in sizes) <= self._allowance:
            return None
        total, cutoff = sum(sketched for _, sketched in sizes), -1
        for full, sketched in sizes:
            total += full - sketched
            if total > self._allowance:
                break
            cutoff = full
        # of several tensors of the size where it ends some may not fit: then none of that size is kept in full
        return cutoff if not sizes or cutoff != full else cutoff - 1


def _payload(staged: Staged) -> Any:
    """What is stored once: the words, or on a device what stands for them."""
    return staged.words if staged.summary is None else staged.summary


def _cost(tier: Tier, staged: Staged) -> int:
    """Bytes that a tensor takes in the dump at a tier."""
    if tier is Tier.FULL or staged.nbytes < WHOLE_BELOW.get(tier, 0):
        return int(staged.nbytes)
    numel = math.prod(staged.form.shape)
    sizes: dict[Tier, int] = {Tier.SAMPLE: 8 * SAMPLES, Tier.SKETCH: 8 * count_buckets(numel)}
    return sizes.get(tier, 0)
