"""Which first call a recomputed call repeats.

A reentrant checkpoint runs its modules without gradients and repeats them during the backward pass; only the repeated
calls have gradients, and these belong to the first ones. (A non-reentrant checkpoint keeps the first graph: there the
first calls are watched themselves.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Optional

import torch

from precision_align.recording.tape import Place

Pointers = tuple[tuple[int, tuple[int, ...]], ...]


@dataclass(frozen=True)
class FirstCall:
    """A call that ran without gradients and may be repeated with them."""

    place: Place
    identity: int
    parent: int
    pointers: Pointers


class Recomputations:
    """Matches repeated calls of one step with its first calls, each at most once."""

    def __init__(self) -> None:
        self._waiting: dict[str, list[FirstCall]] = {}
        self._last: dict[tuple[int, int], FirstCall] = {}

    def clear(self) -> None:
        """A new step."""
        self._waiting.clear()
        self._last.clear()

    def remember(self, call: FirstCall) -> None:
        """A first call without gradients."""
        self._waiting.setdefault(call.place.scope, []).append(call)

    def match(
        self, scope: str, parent: Optional[FirstCall], pointers: Pointers, segment: tuple[int, int]
    ) -> Optional[FirstCall]:
        """The first call that this one repeats, or None where that is not certain.

        Below a matched call the order of calls decides. The first call in a checkpointed function (``segment``: the
        autograd node that repeats it) gets the very tensors of the call it repeats, which the checkpoint has kept
        alive; of several that ever lay there it is the last. Those after it follow in order: their inputs' memory may
        have been used by others meanwhile.
        """
        waiting = self._waiting.get(scope, [])
        last = self._last.get(segment)
        if parent is not None:
            found = [call for call in waiting if call.parent == parent.identity][:1]
        elif last is not None:
            siblings = [call for call in waiting if call.parent == last.parent]
            found = [call for call in siblings if call.identity > last.identity][:1]
        else:
            found = [call for call in waiting if pointers and call.pointers == pointers][-1:]
        if not found and len(waiting) == 1:
            found = waiting[:]
        if not found:
            return None
        waiting.remove(found[0])
        if parent is None:
            self._last[segment] = found[0]
        return found[0]


def point_at(tensors: Sequence[torch.Tensor]) -> Pointers:
    """Where the tensors lie in memory: the same for a tensor and its detached twin."""
    return tuple(map(_point_at, tensors))


def _point_at(tensor: torch.Tensor) -> tuple[int, tuple[int, ...]]:
    try:
        return int(tensor.data_ptr()), tuple(tensor.shape)
    except Exception:  # sparse, meta, nested and wrapped tensors have no address, each with an error of its own
        return 0, ()
