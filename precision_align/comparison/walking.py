"""In which order calls are judged: as they ran, or, under a time budget, the most suspicious first.

The order of judging changes no verdict, and the walk order still says which failure is the first. Suspicion is what the
index shows without a payload: by how much a call's results seem further from the reference's than all that they were
computed from. Once a call fails, only what stands before it can be an earlier cause: that comes next, by suspicion, and
all the rest after it, in walk order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from precision_align.alignment.side import Node
from precision_align.comparison.deadlines import Deadline
from precision_align.comparison.raw import Pair, RawComparer
from precision_align.core.results import RecordResult
from precision_align.core.terms import Status

Progress = Callable[[int, int], None]
# A source that agrees bit for bit still counts as this far off: rounding of the operator's own.
FLOOR = 1e-9


class Judge(Protocol):
    """Of one phase."""

    def judge(self, node: Node) -> list[RecordResult]: ...

    def list_results(self, node: Node) -> Iterable[Pair]: ...

    def list_sources(self, node: Node) -> Iterable[Pair]: ...


@dataclass(frozen=True)
class _Visit:
    judge: Judge
    node: Node


class Walk:
    """Judges the calls of all steps, each once in each phase. ``judges``: by phase, forward first."""

    def __init__(
        self,
        judges: Sequence[Judge],
        steps: Sequence[Sequence[Node]],
        raw: RawComparer,
        deadline: Deadline,
        progress: Progress | None,
    ) -> None:
        self._visits = [_Visit(judge, node) for nodes in steps for judge in judges for node in nodes]
        self._raw, self._deadline, self._progress = raw, deadline, progress
        self._found: dict[tuple[int, Node], list[RecordResult]] = {}

    def judge_ahead(self) -> None:
        """Under a time budget: as many calls as it allows, the most suspicious first."""
        if not self._deadline.is_set:
            return
        ranked = sorted(enumerate(self._visits), key=lambda pair: (-self._rank(pair[1]), pair[0]))
        first, later = len(self._visits), []
        for place, visit in ranked:
            if place > first:
                later.append(place)
            elif self._deadline.is_over():
                return
            elif any(row.status == Status.FAIL for row in self.take(visit.judge, visit.node)):
                first = place
        for place in sorted(later):
            if self._deadline.is_over():
                return
            self.take(self._visits[place].judge, self._visits[place].node)

    def take(self, judge: Judge, node: Node) -> list[RecordResult]:
        """The rows of a call in one phase, judged now unless they were before."""
        place = (id(judge), node)
        if place not in self._found:
            self._found[place] = judge.judge(node)
            if self._progress is not None:
                self._progress(len(self._found), len(self._visits))
        return self._found[place]

    def _rank(self, visit: _Visit) -> int:
        """The power of ten of the growth: finer differences of suspicion mean nothing."""
        came_out = max((self._raw.glance(*pair) for pair in visit.judge.list_results(visit.node)), default=0.0)
        if came_out == 0:
            return -99
        entered = max((self._raw.glance(*pair) for pair in visit.judge.list_sources(visit.node)), default=0.0)
        growth = came_out / max(entered, FLOOR)
        return 99 if math.isinf(growth) else max(-98, math.floor(math.log10(max(growth, 1e-98))))
