"""The contracts between who records, who stores and who reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, Union

from precision_align.core.dtypes import Array
from precision_align.core.keys import Key
from precision_align.core.records import Call, Point, RunInfo, TensorRecord
from precision_align.storage.drafts import DeferredCall, DeferredDraft, Item


@dataclass(frozen=True)
class Draft:
    """A tensor on its way to a sink: its record without digest and statistics, and its raw words.

    ``words``: C-ordered array of the logical shape in the dtype's word type (see :mod:`~precision_align.core.dtypes`),
    owned by the draft, or None where nothing can be stored (then ``record.reason`` says why). The record's ``tier`` is
    what was asked for.
    """

    record: TensorRecord
    words: Array | None


AnyDraft = Union[Draft, DeferredDraft]


class Sink(Protocol):
    """Where a recording session puts what it sees. Calls come from the training thread; none raises for one tensor.

    A sink with a method ``put_many`` gets tensors and calls by the batch instead, see :func:`put_all`.
    """

    def put(self, draft: AnyDraft) -> None:
        """Take a tensor; may block for back-pressure."""

    def put_call(self, call: Call) -> None:
        """Take a finished call."""

    def put_point(self, point: Point) -> None:
        """Take one value of a scalar series."""

    def note(self, text: str) -> None:
        """Remember something that was not recorded; shown by every reader."""

    def end_step(self, step: int) -> None:
        """All of this step was handed over: make it durable."""

    def close(self, info: RunInfo) -> None:
        """Write what is left; after this the dump is complete."""


def put_all(sink: Sink, items: list[Item], nbytes: int) -> None:
    """Hand tensors and calls over in their order; ``nbytes``: what the tensors' copies weigh."""
    put_many = getattr(sink, "put_many", None)
    if put_many is not None:
        put_many(items, nbytes)
        return
    for item in items:
        if isinstance(item, DeferredCall):
            sink.put_call(item.call())
        elif isinstance(item, Call):
            sink.put_call(item)
        else:
            sink.put(item)


class Dump(Protocol):
    """A recorded run, one rank or several, as readers see it."""

    @property
    def info(self) -> RunInfo:
        """Of the lowest rank present."""

    @property
    def infos(self) -> Sequence[RunInfo]:
        """One a rank, notes included."""

    @property
    def records(self) -> Sequence[TensorRecord]:
        """All tensors, ordered by rank, step and sequence number."""

    @property
    def calls(self) -> Sequence[Call]:
        """All module calls, ordered by rank, step and exit."""

    @property
    def series(self) -> Sequence[Point]:
        """Scalar series (loss and others) of the lowest rank, ordered by step and micro-batch."""

    @property
    def notes(self) -> Sequence[str]:
        """What this dump lacks: gaps, unreadable parts, tensors left out."""

    @property
    def gaps(self) -> Sequence[str]:
        """Where recorded data are missing or cannot be read: damaged or absent files, a run that was cut off."""

    @property
    def steps(self) -> Sequence[int]:
        """All steps that have a record or a call, ascending."""

    @property
    def ranks(self) -> Sequence[int]:
        """All ranks present, ascending."""

    def get(self, key: Key) -> TensorRecord:
        """The record of a key. Raises KeyError."""

    def find(self, text: str) -> TensorRecord:
        """The record of a key given in its text form. Raises KeyError."""

    def payload(self, key: Key) -> Array:
        """The raw words of a tensor in its logical shape, hash verified; the caller may change them.

        Raises KeyError where there is no such record or no payload of it, DumpDamaged.
        """

    def map_payload(self, key: Key) -> Array | None:
        """The raw words of a tensor as a read-only view, hash verified; None where only ``payload``'s copy can be had.

        Pages that were looked at are let go now and then, and by
        :func:`~precision_align.storage.mapping.release_pages`; the view stays valid. Raises KeyError where there is no
        such record, DumpDamaged.
        """

    def values(self, key: Key) -> Array:
        """The numbers of a tensor: bfloat16 and float8 widened to float32 exactly, the rest as stored."""

    def sketch(self, key: Key) -> Array | None:
        """The linear sketch of a tensor in float64, computed where the payload is stored; None where there is neither.

        Raises KeyError, DumpDamaged.
        """

    def sample(self, key: Key) -> Array | None:
        """The sample of a tensor (see :mod:`~precision_align.numerics.sampling`) in float64, taken now where the
        payload is stored; None where there is neither. Raises KeyError, DumpDamaged.
        """

    def close(self) -> None:
        """Let go of open files."""

    def __enter__(self) -> Dump:
        """The dump itself; leaving the block closes it."""

    def __exit__(self, *error: object) -> None: ...
