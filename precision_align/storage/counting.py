"""A sink that writes nothing and tells what a dump would take."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Optional

from precision_align.core.records import Call, Point, RunInfo
from precision_align.storage import layout
from precision_align.storage.base import AnyDraft
from precision_align.storage.batches import narrow_words
from precision_align.storage.checkpoints import Checkpoint
from precision_align.storage.entries import Entry, Finisher
from precision_align.storage.layout import ALIGNMENT
from precision_align.storage.projections import TIERS, count_bytes
from precision_align.storage.settings import PART_BYTES
from precision_align.storage.tables import encode_info, fill_calls
from precision_align.storage.texts import TextWriter

# Superblock, object headers and attributes of an HDF5 file with our seven tables.
_FILE_BYTES = 8192


class StepCounted(BaseException):
    """Enough was seen: unwinds the training, whatever exceptions it catches. Not an error."""


@dataclass(frozen=True)
class StepCount:
    """One recorded step of one rank. Bytes as they would be on disk, equal tensors counted once.

    ``raw_bytes``: of the distinct tensors themselves; ``tiers``: tier -> bytes of the step if all were kept so.
    """

    step: int
    tensors: int
    calls: int
    payload_bytes: int
    table_bytes: int
    files: int
    raw_bytes: int
    tiers: Mapping[str, int]

    @property
    def nbytes(self) -> int:
        """All bytes of the step."""
        return self.payload_bytes + self.table_bytes


@dataclass
class _Running:
    """The step that is being counted."""

    finisher: Finisher
    texts: TextWriter = field(default_factory=TextWriter)
    payloads: dict[tuple[bytes, int], int] = field(default_factory=dict)
    tensors: int = 0
    calls: int = 0
    tables: int = 0
    sketches: int = 0
    sizes: dict[tuple[bytes, int], tuple[int, int]] = field(default_factory=dict)

    def add(self, entry: Entry) -> None:
        """Count one tensor."""
        self.tensors += 1
        self.tables += layout.INDEX.itemsize + len(str(entry.draft.key)) + 1
        record = entry.draft
        self.texts.intern_all((record.dtype, record.layout, record.device, entry.reason))
        if entry.extra:
            self.texts.intern(entry.extra)
        if entry.sketch is not None:
            self.sketches += entry.sketch.nbytes
        nbytes = entry.nbytes
        if entry.words is not None:
            narrow, _ = narrow_words(entry.words, entry.draft.stride, entry.digest)
            nbytes = narrow.nbytes
            padded = narrow.nbytes + -narrow.nbytes % ALIGNMENT
            self.payloads[entry.digest, narrow.nbytes] = padded
        number = 0 if entry.digest else self.tensors  # without a hash nothing is known to be equal
        self.sizes[entry.digest, number or nbytes] = nbytes, math.prod(entry.draft.shape)

    def finish(self, step: int, info_bytes: int) -> StepCount:
        """What it comes to."""
        payload = sum(self.payloads.values())
        files = max(1, -(-payload // PART_BYTES))
        tables = self.tables + len(self.texts.to_bytes()) + files * (_FILE_BYTES + info_bytes)
        sizes = list(self.sizes.values())
        tiers = {str(tier): count_bytes(tier, tables, sizes) for tier in TIERS}
        raw = sum(nbytes for nbytes, _ in sizes)
        return StepCount(step, self.tensors, self.calls, payload, tables + self.sketches, files, raw, tiers)


class CountingSink:
    """Implements :class:`~precision_align.storage.base.Sink`; ``steps``: what was counted.

    ``enough``: after so many recorded steps :class:`StepCounted` is raised out of the training (None: never);
    ``weights_from``: as of the settings.
    """

    def __init__(self, enough: Optional[int] = 1, weights_from: Optional[str] = None) -> None:
        checkpoint = None if weights_from is None else Checkpoint(weights_from)
        self._checkpoint = checkpoint
        self.steps: list[StepCount] = []
        self.notes: list[str] = []
        self.enough = enough
        self._running = _Running(Finisher(self._checkpoint))
        self._info_bytes = 0

    def put(self, draft: AnyDraft) -> None:
        """Count a tensor."""
        self._running.add(self._running.finisher.finish(draft))

    def put_call(self, call: Call) -> None:
        """Count a call."""
        self._running.calls += 1
        self._running.tables += layout.CALLS.itemsize
        fill_calls([call], self._running.texts)

    def put_point(self, point: Point) -> None:
        """Points are a line in a file of their own: not counted."""

    def note(self, text: str) -> None:
        """Keep a note."""
        self.notes.append(text)

    def end_step(self, step: int) -> None:
        """A step is complete. Raises StepCounted."""
        if not self._running.tensors and not self._running.calls:
            return
        self.steps.append(self._running.finish(step, self._info_bytes))
        self._running = _Running(Finisher(self._checkpoint))
        if self.enough is not None and len(self.steps) >= self.enough:
            self.enough = None  # once only: the session ends its step again while it closes
            raise StepCounted

    def close(self, info: RunInfo) -> None:
        """Nothing to write."""
        self._info_bytes = len(encode_info(info))


def total_bytes(steps: Iterable[StepCount]) -> int:
    """Bytes of all steps."""
    return sum(step.nbytes for step in steps)
