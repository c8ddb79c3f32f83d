"""A sink that keeps the last steps in memory and writes them only when a trigger fires."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Union

from precision_align.core.dtypes import dtype_of
from precision_align.core.records import Call, Point, RunInfo, Statistics
from precision_align.numerics.statistics import summarize
from precision_align.recording.triggers import Trigger
from precision_align.storage.base import AnyDraft, Draft, Sink
from precision_align.storage.drafts import DeferredDraft

# Host memory that a ring may take beside the training.
RING_BYTES = 2 << 30
_NO_ROOM = "the ring of recorded steps was full: lower the payload tier or raise ring_bytes"


class DroppingSink:
    """A sink for ranks that are not to record: nothing is written, no folder made."""

    def put(self, draft: AnyDraft) -> None:
        """Dropped."""

    def put_call(self, call: Call) -> None:
        """Dropped."""

    def put_point(self, point: Point) -> None:
        """Dropped."""

    def note(self, text: str) -> None:
        """Dropped."""

    def end_step(self, step: int) -> None:
        """Nothing to end."""

    def close(self, info: RunInfo) -> None:
        """Nothing to close."""


@dataclass
class _Step:
    """What came in one step."""

    number: int = -1
    items: list[Union[AnyDraft, Call]] = field(default_factory=list)
    nbytes: int = 0


class RingSink:
    """Implements :class:`~precision_align.storage.base.Sink` in front of another sink.

    Holds ``size`` steps, the running one included, and at most ``max_bytes`` of payload (oldest steps go first; a
    single step beyond it loses payloads, with the reason). Series go through at once. When the trigger fires, at the
    end of a step, that step and those before it are written. Words that several records share are counted once.
    """

    def __init__(self, sink: Sink, trigger: Trigger, size: int, max_bytes: int = RING_BYTES) -> None:
        self._sink, self._trigger, self._size, self._max_bytes = sink, trigger, size, max_bytes
        self._steps: deque[_Step] = deque()
        self._running = _Step()
        self._seen: set[int] = set()
        self._fired = 0

    def put(self, draft: AnyDraft) -> None:
        """Keep a tensor for now."""
        words = draft.words
        summary = draft.copy.summary if isinstance(draft, DeferredDraft) else None
        if summary is not None and summary.values is not None:
            values = summary.values
            self._trigger.look_at_tensor(draft.record, lambda: Statistics(*values))
        if words is not None and id(words) not in self._seen:
            self._trigger.look_at_tensor(draft.record, lambda: summarize(words, dtype_of(draft.record.dtype)))
            self._seen.add(id(words))
            self._make_room(words.nbytes)
            if self._running.nbytes + words.nbytes > self._max_bytes:
                draft = Draft(replace(draft.record, reason=_NO_ROOM), None)
                self._seen.discard(id(words))
            else:
                self._running.nbytes += words.nbytes
        self._running.items.append(draft)

    def _make_room(self, nbytes: int) -> None:
        while self._steps and self._num_bytes() + nbytes > self._max_bytes:
            dropped = self._steps.popleft()
            self._sink.note(f"the ring had no room for step {dropped.number}: {_NO_ROOM}")

    def _num_bytes(self) -> int:
        return self._running.nbytes + sum(step.nbytes for step in self._steps)

    def put_call(self, call: Call) -> None:
        """Keep a call for now."""
        self._running.items.append(call)

    def put_point(self, point: Point) -> None:
        """Series are small: all of them are kept."""
        self._trigger.look_at_point(point)
        self._sink.put_point(point)

    def note(self, text: str) -> None:
        """Notes go through."""
        self._sink.note(text)

    @property
    def notes(self) -> Sequence[str]:
        """Those of the sink behind."""
        return tuple(getattr(self._sink, "notes", ()))

    @property
    def lost(self) -> str:
        """As the sink behind."""
        return str(getattr(self._sink, "lost", ""))

    def end_step(self, step: int) -> None:
        """Ask the trigger; write, or go round."""
        self._running.number = step
        if self._running.items:
            self._steps.append(self._running)
        self._running, self._seen = _Step(), set()
        reason = self._trigger.finish_step()
        if reason:
            self._write(step, reason)
        while len(self._steps) >= self._size:
            self._steps.popleft()

    def _write(self, step: int, reason: str) -> None:
        self._fired += 1
        numbers: Sequence[int] = [kept.number for kept in self._steps]
        self._sink.note(f"the trigger fired at step {step}: {reason}; steps {numbers} were written")
        while self._steps:
            kept = self._steps.popleft()
            for item in kept.items:
                if isinstance(item, Call):
                    self._sink.put_call(item)
                else:
                    self._sink.put(item)
            self._sink.end_step(kept.number)

    def close(self, info: RunInfo) -> None:
        """Close the sink behind; steps that no trigger asked for are gone."""
        if not self._fired:
            self._sink.note("no trigger fired: only the scalar series were written")
        self._steps.clear()
        self._sink.close(info)
