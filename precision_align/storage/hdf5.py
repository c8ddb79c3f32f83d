"""The dump writer: HDF5 files filled by one background thread.

A folder ``rank00000`` a process holds ``step00000012-00000012.part000.h5`` and so on, each written under a name that
ends in ``.tmp`` and renamed when it is complete, ``run.json``, and ``series.jsonl`` with one line a scalar. In a file:
``index`` (one row a tensor, see :mod:`~precision_align.storage.layout`), ``keys`` (their texts, one a line, in the same
order), ``blob`` (the payloads; in compressed files ``blob1``, ``blob2`` and so on, by the bytes of a word), ``strings``
(one JSON value a line; columns of texts are line numbers), ``calls``, ``series``, ``sketches`` and ``info``; in the
root attributes ``format``, ``schema_version``, ``complete``, ``sequence``, ``digests`` (of every table; a payload's
stands in its row), ``digest_kind`` and ``sketch_kind`` (their definitions), and ``distinct`` (no key comes twice).
Reading one tensor needs none of our code:

    row = file["index"][file["keys"][:].tobytes().decode().split("\\n").index(key)]
    data = file["blob"][row["offset"] : row["offset"] + row["stored"]]
    words = data.view(row["word"].decode()).reshape(row["shape"][: row["ndim"]])

``file`` is ``h5py.File(path)``. bfloat16, float8 and complex32 come as unsigned words: ``row["word"]`` is their type
and ``strings`` has the name. Where ``row["expanded"]`` is not 0, the dimensions of its set bits are stored with size 1.
"""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Union

import h5py  # noqa: F401 (it must be loaded before us: what ends a process runs in reverse order, and its end ends HDF5)

from precision_align.core.records import Call, Point, RunInfo
from precision_align.storage.base import AnyDraft, Draft
from precision_align.storage.blobs import is_disk_full
from precision_align.storage.checkpoints import Checkpoint
from precision_align.storage.drafts import DeferredCall, Item
from precision_align.storage.entries import Entry, Finisher, record_of
from precision_align.storage.finishers import AnyItem, BatchFinisher, split_runs
from precision_align.storage.folders import prepare_folder
from precision_align.storage.notes import Notebook
from precision_align.storage.parts import Part
from precision_align.storage.queues import ByteQueue
from precision_align.storage.rings import Ring
from precision_align.storage.runs import Run, write_run
from precision_align.storage.series import SeriesFile
from precision_align.storage.settings import DEFAULT_SETTINGS, Settings
from precision_align.storage.tables import encode_info
from precision_align.storage.texts import Encoder

_FULL = "the disk is full: payloads were left out from here on"
_SLOW = "the disk was too slow: a sketch was kept instead of the payload"
# What a record without words weighs in the queue, roughly.
_RECORD_BYTES = 1024
# Of what waits so much is taken at once. Beyond these it costs no less, and the queue's room comes free later.
_ITEMS_AT_ONCE, _BYTES_AT_ONCE = 256, 8 << 20
_CALLS = frozenset({Call, DeferredCall})


@dataclass(frozen=True)
class _Value:
    """A point; ``saved``: it stands in ``series.jsonl`` already."""

    point: Point
    saved: bool


class _EndStep:
    """A marker in the queue; ``done`` is set once everything before it, and ``points``, is on disk."""

    def __init__(self, last: bool, points: list[_Value]) -> None:
        self.last, self.points = last, points
        self.done = threading.Event()


_Item = Union[AnyItem, Call, DeferredCall, list[Item], _EndStep]


class Hdf5Sink:
    """Writes one rank of a run into ``folder``; implements :class:`~precision_align.storage.base.Sink`.

    ``settings``: see :class:`~precision_align.storage.settings.Settings`; ``put`` waits while more than its
    ``queue_bytes`` wait to be written, ``wait_seconds`` at most. A file closes at ``end_step`` or beyond ``part_bytes``
    of payload; a step without tensors and calls makes none. When ``end_step(n)`` returns, all steps before n are in
    finished files and survive ``kill -9`` (with ``fsync="step"`` a power failure too), unless a note says that the disk
    was too slow; step n follows in the background. A full disk costs payloads, never the training: what is missing is
    noted in the dump. Raises UsageError, Unavailable and StorageFull from the constructor, and nothing afterwards.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        info: RunInfo,
        *,
        overwrite: bool = False,
        append: bool = False,
        settings: Settings = DEFAULT_SETTINGS,
    ) -> None:
        settings.check()
        start = prepare_folder(Path(folder), info, overwrite=overwrite, append=append)
        self._folder = start.folder
        self._info = info
        self._settings = settings
        self._sequence = self._first_sequence = start.sequence
        self._notes = Notebook(start.notes)
        self._series = SeriesFile(self._folder, self.note)
        checkpoint = None if settings.weights_from is None else Checkpoint(settings.weights_from)
        self._finisher, self._encoder = BatchFinisher(checkpoint), Encoder()
        self._part: Part | None = None
        self._values: list[_Value] = []  # of the running step
        self._untouched = True  # nothing else came in it
        self._points: list[_Value] = []
        self._ring = Ring(start.folder, settings.keep)
        self._encoded: tuple[tuple[RunInfo, tuple[str, ...]], str] | None = None
        self._pending: _EndStep | None = None
        self._closed = False
        self._stalled = False
        self._forced_bytes = 0  # of what was queued without room since the last stall began
        self._process = os.getpid()
        self._write_run(closed=False)
        self._limit = settings.staging_bytes
        self._queue: ByteQueue[_Item] = ByteQueue(self._limit)
        self._thread = threading.Thread(target=self._run, name="precision-align writer", daemon=True)
        self._thread.start()
        self._at_exit = _close_at_exit(self)

    def put_many(self, items: list[Item], nbytes: int) -> None:
        """Take tensors and calls at once; what does not fit into the queue is taken one by one as by ``put``."""
        if not self._accepts():
            return
        self._untouched = False
        if self._queue.put(items, nbytes + _RECORD_BYTES * len(items), self._patience):
            self._stalled, self._forced_bytes = False, 0
            return
        self._stalled = True
        for item in items:
            if isinstance(item, (Call, DeferredCall)):
                self.put_call(item)
            else:
                self.put(item)

    def put(self, draft: AnyDraft) -> None:
        """Take a tensor; waits while the queue is full, and keeps a sketch of it where that takes too long."""
        if not self._accepts():
            return
        self._untouched = False
        words = draft.words if isinstance(draft, Draft) else draft.copy.words
        nbytes = 0 if words is None else words.nbytes
        if self._queue.put(draft, nbytes + _RECORD_BYTES, self._patience):
            self._stalled, self._forced_bytes = False, 0
            return
        self._stalled = True
        self._reduce(draft)

    @property
    def _patience(self) -> float:
        """Once the wait was in vain there is none until the queue has room again: waits must not add up."""
        return 0.0 if self._stalled else self._settings.wait_seconds

    def _reduce(self, draft: AnyDraft) -> None:
        """Queue what little of a tensor has a place while the disk stands still, at most as much again as its limit."""
        step = record_of(draft).key.step
        self._notes.add(f"from step {step} on, for a while: {_SLOW}")
        finisher = Finisher()
        finisher.payloads, finisher.reason = False, _SLOW
        entry = finisher.finish(draft)
        if entry.words is not None:  # so small that it would have been kept whole
            entry = entry.without_payload(_SLOW)
        nbytes = _RECORD_BYTES + (0 if entry.sketch is None else entry.sketch.nbytes)
        # not by what is queued: that may be one tensor larger than the limit, and would leave no place for any sketch
        if self._forced_bytes + nbytes > self._limit + _RECORD_BYTES:
            self._notes.add_loss(step, step, 1, "the disk stood still and no memory was left")
        else:
            self._forced_bytes += nbytes
            self._queue.force(entry, nbytes)

    def put_call(self, call: Call | DeferredCall) -> None:
        """Take a finished call."""
        if self._accepts():
            self._untouched = False
            self._queue.force(call)

    def put_point(self, point: Point) -> None:
        """Take one value of a series; it is on disk in ``series.jsonl`` when this returns."""
        if self._accepts():
            self._values.append(_Value(point, self._series.append(point)))

    def note(self, text: str) -> None:
        """Remember something that was not recorded; it goes into every file from here on."""
        self._notes.add(text)

    @property
    def notes(self) -> list[str]:
        """All notes so far, the writer's own included."""
        return self._notes.texts()

    @property
    def lost(self) -> str:
        """Why not one file could be written though there was something to write, or nothing."""
        return self._notes.loss if self._sequence == self._first_sequence else ""

    def end_step(self, step: int) -> None:
        """All of this step was handed over; returns when every earlier step is on disk, or after ``wait_seconds``."""
        if not self._accepts():
            return
        if self._pending is not None and not self._pending.done.wait(self._patience):
            self._stalled = True
            self._notes.add("the disk was slow: some steps were on disk later than a later step's end")
        values, self._values = self._values, []
        if self._untouched and all(value.saved for value in values):
            return  # a step that is not recorded need not wake the writer
        self._untouched = True
        self._pending = _EndStep(False, values)
        self._queue.force(self._pending)

    def flush(self) -> None:
        """Wait until all finished steps are on disk."""
        if self._accepts():
            self._queue.wait_empty()

    def close(self, info: RunInfo) -> None:
        """Write what is left and the final run information; later calls do nothing."""
        if not self._accepts():
            return
        self._info = info
        self._closed = True
        self._queue.force(_EndStep(True, self._values))
        self._thread.join()
        self._series.close()
        self._write_run(closed=True)
        atexit.unregister(self._at_exit)

    def _accepts(self) -> bool:
        # A forked child (a data loader's worker) has no writer thread: its queue would just fill up.
        return not self._closed and os.getpid() == self._process

    def _write_run(self, *, closed: bool) -> None:
        info = replace(self._info, notes=tuple(dict.fromkeys([*self._info.notes, *self._notes.texts()])))
        try:
            write_run(self._folder, Run(info, closed, self._sequence, self._settings.keep))
        except OSError as error:
            self.note(f"run.json could not be written: {error}")

    # Everything below runs in the writer thread.

    def _run(self) -> None:
        while not self._work():
            pass

    def _work(self) -> bool:
        """Take some of what waits; whether it was the last."""
        items = self._queue.get_several(_ITEMS_AT_ONCE, _BYTES_AT_ONCE)
        running: list[Any] = []  # came one by one
        last = False
        for item in items:
            if not isinstance(item, (_EndStep, list)):
                running.append(item)
                continue
            self._take(running)
            running = []
            if isinstance(item, list):
                self._take(item)
            else:
                self._end(item)
                last = last or item.last
        self._take(running)
        self._queue.release(len(items))
        return last

    def _take(self, items: Sequence[Any]) -> None:
        """Tensors and calls, in their order among their like."""
        calls = [item for item in items if type(item) in _CALLS]
        drafts = [item for item in items if type(item) not in _CALLS] if calls else items
        self._guard(self._add_calls, calls)
        self._guard(self._add_drafts, drafts)

    def _guard(self, add: Callable[[Sequence[Any]], None], items: Sequence[Any]) -> None:
        """What is wrong with one item costs none of those that came with it, and is kept for the reader of the dump:
        the training must go on."""
        if not items:
            return
        try:
            add(items)
        except Exception as error:
            if len(items) > 1:
                for item in items:
                    self._guard(add, [item])
            else:
                self._notes.add(f"the dump writer met {type(error).__name__}: {error} ({_describe(items[0])})")

    def _end(self, item: _EndStep) -> None:
        try:
            self._points += [value for value in item.points if self._part is not None or not value.saved]
            if item.last and self._points:
                self._open_part()
            self._finish_part()
        except Exception as error:
            self._notes.add(f"the dump writer met {type(error).__name__}: {error}")
        finally:
            item.done.set()

    def _add_calls(self, calls: Sequence[Call | DeferredCall]) -> None:
        self._open_part().add_calls(calls)
        self._close_if_full()

    def _add_drafts(self, items: Sequence[AnyItem]) -> None:
        for run in split_runs(items):
            self._guard(self._add_run, run)

    def _add_run(self, items: Sequence[AnyItem]) -> None:
        part, batch = self._open_part(), self._finisher.finish_run(items)
        try:
            part.add(batch)
        except OSError as error:
            batch.drop_payloads(self._lose_payloads(part, error))
            part.add(batch)
        self._close_if_full()

    def _close_if_full(self) -> None:
        if self._part is not None and self._part.is_full:
            self._finish_part()

    def _open_part(self) -> Part:
        if self._part is None:
            self._part = Part(self._folder, self._sequence, self._settings, self._encoder)
        return self._part

    def _lose_payloads(self, part: Part, error: BaseException) -> str:
        """Go on without payloads: of this part, and for good where the disk is full.

        Trying again would fill whatever room comes free, which the training needs for its checkpoints.
        """
        reason = _FULL if is_disk_full(error) else f"the payload could not be written: {error}"
        first, last = part.steps
        if self._finisher.payloads or reason is not _FULL:  # once: from then on no payload comes
            self._notes.add(f"{reason} (steps {first} to {last}; {error})")
        if reason is _FULL:
            self._finisher.payloads, self._finisher.reason = False, _FULL
        part.drop_payloads(reason)
        return reason

    def _finish_part(self) -> None:
        part, self._part = self._part, None
        self._finisher.forget()
        if part is None:
            return
        for value in self._points:
            self._guard(lambda values: part.add_point(values[0].point), [value])
        self._points.clear()
        if self._try_finish(part, self._lose_payloads) or self._try_finish(part, self._lose_part):
            self._sequence += 1

    def _try_finish(self, part: Part, otherwise: Callable[[Part, BaseException], object]) -> bool:
        try:
            self._ring.add(part.finish(self._encode_info()))
        except Exception as error:  # whatever it was, the next steps must still be written
            otherwise(part, error)
            return False
        return True

    def _encode_info(self) -> str:
        """The run's information as each file holds it; encoded again only when it has changed."""
        now = (self._info, tuple(self._notes.texts()))
        if self._encoded is None or self._encoded[0] != now:
            self._encoded = (now, encode_info(*now))
        return self._encoded[1]

    def _lose_part(self, part: Part, error: BaseException) -> None:
        part.abandon()
        self._notes.add_loss(*part.steps, part.num_rows, str(error).split("\n")[0])


def _describe(item: Any) -> str:
    """Which item of several something is wrong with."""
    if isinstance(item, _Value):
        return item.point.name
    if type(item) in _CALLS:
        return type(item).__name__
    try:
        return str((item.draft if isinstance(item, Entry) else record_of(item)).key)
    except Exception:  # what is wrong with it may be just that
        return type(item).__name__


def _close_at_exit(sink: Hdf5Sink) -> Callable[[], None]:
    """Close a sink that the interpreter's exit finds open, so that its last step is not lost."""
    found = weakref.ref(sink)

    def close() -> None:
        alive = found()
        if alive is not None:
            alive.note("the program ended without closing the capture")
            alive.close(alive._info)

    atexit.register(close)
    return close
